"""The settings of a rollout worker, as one value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from marlflow.base.spaces import Spaces
from marlflow.rollout.lanes import PolicyOf
from marlflow.rollout.mapping import ByRules, Rule


@dataclass(frozen=True, slots=True)
class SamplerConfig:
    """What a rollout worker plays, and which rows of it are wanted.

    worker = RolloutWorker(SamplerConfig(make_env, copies=range(8), mapping={"a": "prey"}, seed=0), actors)
    """

    make_env: Callable[[], Any]
    """Makes one environment."""

    copies: Sequence[int]
    """The numbers of the worker's copies of the environment, which are unique over all workers of a run."""

    mapping: Mapping[str, str] | Sequence[Rule] | PolicyOf | None
    """Which policy plays which agent: a dict, rules or a function, of which the latter two also cover agents that are
    not declared. None: each `collect` brings the matchups of its episodes; then `spaces` is needed."""

    seed: int
    """The seed of the run. What a worker makes depends on it and on the numbers of its copies."""

    worker: int = 0
    """The number of the worker, which its receipts have."""

    recorded: Collection[str] | None = None
    """The policies whose rows are handed over; None: all. Of the others only episode results remain."""

    spaces: Mapping[str, Spaces] | None = None
    """What the agents of each policy see and do; None: as the mapping's agents show."""

    with_state: Collection[str] = ()
    """The policies whose rows have the environment's global state."""

    tolerated_faults: int = 0
    """How many episodes the environments may break before the worker raises EnvironmentFailed."""

    history_env_steps: int = 10_000
    """Env steps up to which an episode can be played again, and so continued, from what `state` gives."""

    next_episodes: Mapping[int, int] = field(default_factory=dict)
    """The number of each copy's first episode; 0 for copies that are not in it."""

    publishing_critics: Collection[str] = ()
    """The policies whose weights have the critic's parameters after those that act."""

    @property
    def policy_of(self) -> PolicyOf:
        """The policy of an agent by the mapping; None for every agent where there is no mapping."""
        if self.mapping is None or isinstance(self.mapping, Mapping):
            return cast(PolicyOf, (self.mapping or {}).get)
        return self.mapping if callable(self.mapping) else ByRules(self.mapping)
