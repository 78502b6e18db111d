"""Sampling: map agents to policies, step vectorized environments, turn decisions into rows of experience."""

from marlflow.rollout.config import SamplerConfig
from marlflow.rollout.fragment import EpisodeResult, PolicyReceipt, Receipt
from marlflow.rollout.mapping import Rule, assign, group
from marlflow.rollout.worker import RolloutWorker

__all__ = ["EpisodeResult", "PolicyReceipt", "Receipt", "RolloutWorker", "Rule", "SamplerConfig", "assign", "group"]
