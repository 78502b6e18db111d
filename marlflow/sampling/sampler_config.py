"""The settings of a rollout worker, the spaces of its policies, and the stages of their plans that run on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from marlflow.base.errors import ConfigInvalid, StageFailed
from marlflow.base.info_columns import NO_COLUMNS, InfoColumns
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch
from marlflow.batches.items import Weights
from marlflow.env import BatchedEnv, EnvAdapter
from marlflow.flow import StageTimes
from marlflow.sampling.mapping import ByRules, PolicyOf, Rule
from marlflow.sampling.population import WORKER_MEMBERS


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """The environments and policies of a rollout worker.

    worker = RolloutWorker(SamplerConfig(make_env, env_indices=range(8), mapping={"a": "prey"}, seed=0), actors)
    """

    make_env: Callable[[], Any]
    """Makes one environment."""

    env_indices: Sequence[int]
    """The numbers of the worker's environments, unique over all workers of a run."""

    mapping: Mapping[str, str] | Sequence[Rule] | PolicyOf | None
    """Agent to policy: a dict, rules, or a function. Rules and functions also cover undeclared agents. None: each
    `collect` is given matchups; then `spaces` is required."""

    seed: int
    """The seed of the run. All random numbers of the worker depend on it and on the numbers of its environments."""

    make_batched: Callable[[int], BatchedEnv] | None = None
    """Makes a number of environments that are stepped by one call, instead of `make_env`; None: there are none."""

    worker: int = 0
    """The number of the worker, for receipts."""

    recorded: Collection[str] | None = None
    """The policies whose rows are returned; None: all. The other policies appear in episode results only."""

    spaces: Mapping[str, Spaces] | None = None
    """Observation and action spaces by policy; None: taken from the mapping's agents."""

    evaluation_only: Collection[str] = ()
    """The policies that no training episode seats."""

    with_state: Collection[str] = ()
    """The policies whose rows include the environment's global state."""

    columns: InfoColumns = NO_COLUMNS
    """The numbers in infos that are columns of rows, or in the results of episodes."""

    compiled: bool | Literal["auto"] = False
    """Whether a fragment is one compiled call of environments, actors and resets; auto: where it can be."""

    tolerated_faults: int = 0
    """Number of episodes that environment faults may end before the worker raises EnvironmentFailed."""

    history_env_steps: int = 10_000
    """The most env steps of a running episode that can be replayed, and so resumed, from `state`."""

    next_episodes: Mapping[int, int] = field(default_factory=dict)
    """The number of each environment's first episode; 0 where missing."""

    publishing_critics: Collection[str] = ()
    """The policies whose published weights have the critic's parameters after the actor's."""

    worker_members: int = WORKER_MEMBERS
    """Number of frozen versions of a policy whose parameters stay ready to act without being seated."""

    cohorts: Sequence[Mapping[str, Mapping[str, float]]] = ()
    """Fixed policies that differ only in their parameters and scheduled values: for each network, the scheduled values
    by policy. Policies of one network act in one call, unless rows are recorded."""

    @property
    def policy_of(self) -> PolicyOf:
        """Maps an agent to its policy; without a mapping, to None."""
        if self.mapping is None or isinstance(self.mapping, Mapping):
            return cast(PolicyOf, (self.mapping or {}).get)
        return self.mapping if callable(self.mapping) else ByRules(self.mapping)


def policy_spaces(
    adapter: EnvAdapter, policy_of_agent: Callable[[str], str | None], actors: Collection[str]
) -> dict[str, Spaces]:
    """Return each policy's spaces, from its agents; raises ConfigInvalid with every contradiction."""
    by_policy: dict[str, tuple[str, Spaces]] = {}
    # One masked agent makes the policy masked; its other agents get all-legal masks.
    masked = {policy_of_agent(agent) for agent in adapter.agents if adapter.masked(agent)}
    problems = []
    for agent in adapter.agents:
        policy = policy_of_agent(agent)
        if policy is None or policy not in actors:
            problem = "no policy" if policy is None else f"policy {policy!r}, which has no actor"
            problems.append(f"agent {agent!r} is mapped to {problem}; the policies are {', '.join(actors) or 'none'}")
            continue
        spaces = Spaces(adapter.observation_space(agent), adapter.action_space(agent), policy in masked)
        first, expected = by_policy.setdefault(policy, (agent, spaces))
        if spaces != expected:
            problems.append(
                f"policy {policy!r} plays {first!r} ({expected.observation}, {expected.action}) and "
                f"{agent!r} ({spaces.observation}, {spaces.action}): agents of one policy need the same spaces"
            )
    if problems:
        raise ConfigInvalid(problems)
    return {policy: spaces for policy, (_, spaces) in by_policy.items()}


class WorkerStages:
    """The `stages` of one policy's plan that run on a worker, in order, on the rows of each collect."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        # Acting weights by policy.
        self.published: Mapping[str, Weights] = {policy: Weights(-1, None)}
        self.scheduled: Mapping[str, float] = {}
        # The acting actor, from the first collect on.
        self.actor: Any = None
        self.stages: Mapping[str, Callable[[Batch], Batch]] = {}

    def __call__(self, batch: Batch) -> tuple[Batch, tuple[StageTimes, ...]]:
        """Apply all stages and time them; raises StageFailed."""
        times = []
        for name, stage in self.stages.items():
            began_s = time.time()
            began = time.perf_counter()
            try:
                made: Any = stage(batch)
                if made is None:
                    raise TypeError("it returned None, and no batch")
                batch, rows = made, made.rows
            except Exception as error:
                path = f"{' -> '.join(self.stages)}, on the rollout workers"
                raise StageFailed(name, self.policy, path, f"{type(error).__name__}: {error}") from error
            times.append(StageTimes(began_s, began_s + time.perf_counter() - began, rows))
        return batch, tuple(times)
