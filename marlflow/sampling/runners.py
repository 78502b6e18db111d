"""The environments of a worker and the loop that steps them: one by one, or all by one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from marlflow.sampling.action_history import History
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.batched_runner import BatchedRunner
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.episodes import EpisodeSource
from marlflow.sampling.faults import FaultLog
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.sampler_config import SamplerConfig
from marlflow.sampling.segment_builder import SegmentBuilder
from marlflow.sampling.vector_runner import SyncVectorRunner
from marlflow.sampling.watchdog import Watchdog

Pool: TypeAlias = EnvPool | BatchedEnvPool
Runner: TypeAlias = SyncVectorRunner | BatchedRunner


def make_pool(config: SamplerConfig, env_indices: Sequence[int], watchdog: Watchdog, faults: FaultLog) -> Pool:
    """Open the environments `env_indices` of `config`."""
    sees_state = bool(config.with_state)
    if config.make_batched is not None:
        return BatchedEnvPool(env_indices, config.make_batched, watchdog, faults, sees_state, bool(config.with_costs))
    return EnvPool(env_indices, config.make_env, watchdog, faults, sees_state, bool(config.with_costs))


def make_runner(
    envs: Pool,
    policy_slots: Sequence[PolicySlots],
    lanes: Lanes,
    episodes: EpisodeSource,
    builder: SegmentBuilder | None,
    history: History | None,
    compiled_seed: int | None = None,
) -> Runner:
    """Return the loop for `envs`; no `builder` means no rows."""
    if isinstance(envs, BatchedEnvPool):
        if compiled_seed is not None:
            # Imports JAX.
            from marlflow.sampling.compiled.runner import CompiledRunner

            return CompiledRunner(envs, policy_slots, lanes, episodes, builder, compiled_seed)
        return BatchedRunner(envs, policy_slots, lanes, episodes, builder, history)
    return SyncVectorRunner(envs, policy_slots, lanes, episodes, builder, history)
