"""Sampling: map agents to policies, step vectorized environments, record rows of experience."""

from marlflow.sampling.mapping import Rule, assign, group
from marlflow.sampling.receipts import EpisodeResult, PolicyReceipt, Receipt
from marlflow.sampling.sampler_config import SamplerConfig
from marlflow.sampling.worker import RolloutWorker

__all__ = ["EpisodeResult", "PolicyReceipt", "Receipt", "RolloutWorker", "Rule", "SamplerConfig", "assign", "group"]
