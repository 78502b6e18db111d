"""The environments of a worker, and the loop for its training episodes: step by step, or by compiled calls."""

from __future__ import annotations

from collections.abc import Sequence

from marlflow.base.errors import ConfigInvalid, NotCompiled
from marlflow.env.batched.protocol import is_functional
from marlflow.sampling.action_history import History
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.env_source import EnvSource
from marlflow.sampling.episodes import TrainingEpisodes
from marlflow.sampling.faults import FaultLog
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.receipts import CompiledCalls
from marlflow.sampling.runner import Runner
from marlflow.sampling.sampler_config import SamplerConfig
from marlflow.sampling.segment_builder import SegmentBuilder
from marlflow.sampling.watchdog import Watchdog


def make_pool(config: SamplerConfig, env_indices: Sequence[int], watchdog: Watchdog, faults: FaultLog) -> EnvSource:
    """Open the environments `env_indices` of `config`."""
    pool = EnvPool if config.make_batched is None else BatchedEnvPool
    return pool(config, env_indices, watchdog, faults)


def training_runner(
    config: SamplerConfig,
    envs: EnvSource,
    lanes: Lanes,
    episodes: TrainingEpisodes,
    builder: SegmentBuilder,
    history: History | None,
) -> Runner:
    """Return the loop for the training episodes of a worker; raises ConfigInvalid if it cannot be compiled but must."""
    reason = ""
    if config.compiled is not False:
        try:
            batch = _functional(envs)
            # Imports JAX, as the environment has.
            from marlflow.sampling.compiled.runner import CompiledRunner

            return CompiledRunner(batch, lanes, episodes, builder, config.seed)
        except NotCompiled as error:
            reason = str(error)
            if config.compiled is True:
                raise ConfigInvalid([f"rollouts.compiled=true, but {reason}; set rollouts.compiled=auto"]) from error
    runner = Runner(envs, lanes, episodes, builder, history)
    if reason and _is_functional(envs):
        runner.compiled = CompiledCalls(note=f"rollouts are not compiled: {reason}")
    return runner


def _functional(envs: EnvSource) -> BatchedEnvPool:
    if not isinstance(envs, BatchedEnvPool) or not _is_functional(envs):
        raise NotCompiled("the environment is no functional one (env=functional, jaxmarl, jumanji or pgx)")
    if envs.watchdog.timeout_s is not None:
        raise NotCompiled("env.step_timeout_s is set, and in a compiled call there are no single steps to time")
    return envs


def _is_functional(envs: EnvSource) -> bool:
    return isinstance(envs, BatchedEnvPool) and is_functional(envs.env)
