"""Choose the adapter of an environment: AECAdapter, ParallelAdapter, or BatchedAdapter."""

from __future__ import annotations

from pettingzoo import AECEnv, ParallelEnv

from marlflow.env.adapter import EnvAdapter
from marlflow.env.aec import AECAdapter
from marlflow.env.batched.adapter import BatchedAdapter
from marlflow.env.batched.protocol import BatchedEnv
from marlflow.env.episode_location import EpisodeLocation, environment_name
from marlflow.env.parallel import ParallelAdapter


def open_adapter(env: object, env_index: int = 0, name: str | None = None) -> EnvAdapter:
    """Return the adapter for `env`; `env_index` and `name` are for error messages.

    Resets the environment once (seed 0) to find its agents and whether `infos` has action masks.
    """
    location = EpisodeLocation(name or environment_name(env), env_index)
    if isinstance(env, ParallelEnv):
        return ParallelAdapter(env, location)
    if isinstance(env, AECEnv):
        return AECAdapter(env, location)
    if isinstance(env, BatchedEnv):
        return BatchedAdapter(env, location)
    raise TypeError(f"expected a PettingZoo AECEnv or ParallelEnv, or a BatchedEnv, got {type(env).__name__}")
