"""Adapters for PettingZoo's AEC and Parallel environments."""

from marlflow.env.adapter import AgentEnd, EnvAdapter, StepResult
from marlflow.env.make import make_environment
from marlflow.env.opening import open_adapter

__all__ = ["AgentEnd", "EnvAdapter", "StepResult", "make_environment", "open_adapter"]
