"""Adapters for PettingZoo's AEC and Parallel environments, and for environments that step many at once."""

from marlflow.env.adapter import AgentEnd, EnvAdapter, StepResult, spaces_of
from marlflow.env.batched import BatchedEnv, BatchedStep, SnapshotEnv
from marlflow.env.functional_protocol import FunctionalEnv, FunctionalStep, FunctionalWrapper
from marlflow.env.make import make_environment
from marlflow.env.opening import open_adapter

__all__ = [
    "AgentEnd",
    "BatchedEnv",
    "BatchedStep",
    "EnvAdapter",
    "FunctionalEnv",
    "FunctionalStep",
    "FunctionalWrapper",
    "SnapshotEnv",
    "StepResult",
    "make_environment",
    "open_adapter",
    "spaces_of",
]
