"""Makes the rollout workers and referees of a run by its spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from marlflow.algorithms.from_run import Imported
from marlflow.env.batched.versions import BatchedMaker
from marlflow.env.make import EnvMaker
from marlflow.offline.dataset_writer import DatasetWriter
from marlflow.policy.actor import Actor
from marlflow.sampling.sampler_config import SamplerConfig, WorkerStages
from marlflow.sampling.watchdog import Watchdog
from marlflow.sampling.worker import Referee, RolloutWorker

if TYPE_CHECKING:
    from marlflow.runtime.spec import PolicySpec, RunSpec


def referee(spec: RunSpec, number: int, watchdog: Watchdog) -> Referee:
    """Make referee `number`, which acts by itself; one of its environments is opened at once, as a check."""
    make_env = spec.make_env.without_window() if isinstance(spec.make_env, EnvMaker) else spec.make_env
    spec = replace(spec, inference=None, recording=None, make_env=make_env)
    return Referee(sampling_worker(spec, number, None, None, watchdog, (0,), {}))


def sampling_worker(
    spec: RunSpec,
    number: int,
    actors: Mapping[str, Callable[[], Actor]] | None,
    next_episodes: Mapping[int, int] | None,
    watchdog: Watchdog,
    env_indices: Sequence[int],
    worker_stages: Mapping[str, WorkerStages],
) -> RolloutWorker:
    """Make worker `number`, with the environments `env_indices`; the arguments are as in `RunSpec.worker`."""
    config = SamplerConfig(
        spec.make_env,
        env_indices,
        spec.mapping,
        spec.seed,
        make_batched=_batched_maker(spec),
        worker=number,
        recorded=[name for name in spec.learning if name not in spec.records],
        spaces={name: policy.spaces for name, policy in {**spec.policies, **spec.opponents}.items()},
        evaluation_only=tuple(spec.opponents),
        with_state=spec.with_state,
        columns=spec.columns,
        compiled=spec.compiled_rollouts,
        tolerated_faults=spec.tolerated_faults,
        history_env_steps=spec.history_env_steps,
        next_episodes=next_episodes or {},
        # An inference actor gets weights from the worker as references, and separates critics itself.
        publishing_critics=() if spec.inference is not None else spec.publishing_critics,
        worker_members=spec.worker_members,
        # An inference actor has the networks of all policies.
        cohorts=() if spec.inference is not None else alike(spec.policies.values()),
    )
    writer = None if spec.recording is None else DatasetWriter(spec.recording, number)
    return RolloutWorker(config, spec.actors if actors is None else actors, watchdog, worker_stages, writer)


def _batched_maker(spec: RunSpec) -> BatchedMaker | None:
    found = spec.make_env.make_batched if isinstance(spec.make_env, EnvMaker) else None
    asked = {column.key for column in spec.columns if column.is_asked}
    # With env.batched=auto, the PettingZoo version may give numbers that the batched one does not; anything else was
    # refused before the start.
    return None if found is not None and asked and not asked <= set(found.info_keys()) else found


def alike(policies: Iterable[PolicySpec]) -> list[Mapping[str, Mapping[str, float]]]:
    """Return the imported ones among `policies` by network: the scheduled values of each by name.

    Networks are the same if the configurations of algorithm and model are equal, and the spaces.
    """
    found: list[tuple[Any, dict[str, Mapping[str, float]]]] = []
    for policy in policies:
        if not isinstance(policy.algorithm, Imported):
            continue
        scheduled = policy.algorithm.scheduled
        network = policy.algorithm.algorithm, policy.model, policy.spaces, sorted(scheduled)
        for known, members in found:
            if known == network:
                members[policy.name] = scheduled
                break
        else:
            found.append((network, {policy.name: scheduled}))
    return [members for _, members in found]
