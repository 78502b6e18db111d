"""Experience is made here: agents are mapped to policies, copies step in lockstep, decisions become rows."""

from marlflow.rollout.config import SamplerConfig
from marlflow.rollout.fragment import EpisodeResult, PolicyReceipt, Receipt
from marlflow.rollout.mapping import Rule, assign, group
from marlflow.rollout.worker import RolloutWorker

__all__ = ["EpisodeResult", "PolicyReceipt", "Receipt", "RolloutWorker", "Rule", "SamplerConfig", "assign", "group"]
