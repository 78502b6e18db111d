"""What a worker's environments hand over for each env step: one table of lanes, filled from dicts or from arrays.

`EnvPool` fills it from the dicts of PettingZoo environments, `BatchedEnvPool` from arrays [B, A, ...]. A compiled call
hands over the columns of a whole fragment instead (`sampling.compiled`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.info_columns import InfoColumns
from marlflow.env import EnvAdapter
from marlflow.sampling.faults import FaultLog
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.receipts import Fault

_NO_LANES = np.empty(0, np.int64)
_NO_AMOUNTS = np.empty(0, np.float64)


@dataclass(slots=True)
class LaneStep:
    """The events of one env step in all environments, or of the resets of some.

    `rewards` float64 [N] are of `lanes`, in order of receipt, in which a lane may repeat; of all lanes if `lanes` is
    None. `infos` [S, N] are the stepped info columns beside them, NaN where there is no number; None if there are no
    such columns. `ended`: lanes whose agents ended after those rewards, and whether each `terminated`, bool [E]; the
    others were truncated. `last`: lanes [N] and their info columns that are read at an end [L, N], of agents that ended
    and of all whose episode is over; None if nobody gave any.
    `late_rewards` are of dead agents, or came before the first action. `over`: environments in which nobody is left.
    `broken`: environments whose episodes broke, of which nothing counts; those that broke together share one failure.

    `steady`: nothing ended, joined or broke, and the same lanes act again, in the same order.
    """

    steady: bool = False
    lanes: Array | None = None
    rewards: Array = field(default_factory=lambda: _NO_AMOUNTS)
    infos: Array | None = None
    ended: Array = field(default_factory=lambda: _NO_LANES)
    terminated: Array = field(default_factory=lambda: _NO_LANES)
    last: tuple[Array, Array] | None = None
    late_lanes: Array = field(default_factory=lambda: _NO_LANES)
    late_rewards: Array = field(default_factory=lambda: _NO_AMOUNTS)
    over: list[int] = field(default_factory=list)
    broken: dict[int, EnvironmentFailed] = field(default_factory=dict)


class Finals(NamedTuple):
    """Final observations of N lanes by column, [N, ...] each.

    `missing` bool [N], if not None, are those of which the environment gave none: columns but `state` lack their rows.
    """

    seen: dict[str, Array]
    missing: Array | None = None


class EnvSource(Protocol):
    """The environments of a worker: lane = `index` of the environment * `stride` + agent slot.

    `env_indices` are unique over all workers, an `index` is the position among them. Environments that broke are made
    again before their next reset.
    """

    env_indices: list[int]
    stride: int
    faults: FaultLog
    columns: InfoColumns
    seeds: Array
    """Of each environment's last reset, int64 [B]."""
    env_steps: Array
    """Of each environment's episode, int64 [B]."""
    is_running: Array
    """Whether each environment has an episode, bool [B]."""
    env_s: float
    """Seconds in environments."""

    @property
    def first(self) -> EnvAdapter:
        """The first environment; all have the same agents and spaces."""
        ...

    @property
    def counts(self) -> Array:
        """Number of agents that left without a mark, and of corrected actions, since opening, int64 [2]."""
        ...

    def adapter(self, index: int) -> EnvAdapter:
        """Return an environment's agents and spaces."""
        ...

    def seated(self, index: int) -> list[str] | None:
        """Return undeclared agents in the order of their slots.

        None: agents are declared, or the environment is discarded and will be opened again.
        """
        ...

    def seat(self, index: int, agents: Sequence[str]) -> None:
        """Give undeclared `agents` the first slots, in order, between two episodes."""
        ...

    def appeared(self, index: int) -> set[int] | None:
        """Return the slots of agents that took part in an environment's episode; None: all."""
        ...

    def failure(self, index: int, slot: int | None, reason: str) -> EnvironmentFailed:
        """Return the error of an environment, or of one agent of it."""
        ...

    def reset(self, indices: Array, seeds: Array, tasks: Sequence[int | None]) -> LaneStep:
        """Start episodes in `indices` [N], with task numbers where given.

        Raises EnvironmentFailed if environments that broke cannot be made again.
        """
        ...

    def halt(self, indices: Array) -> None:
        """Leave `indices` without an episode until their next reset."""
        ...

    def discard(self, indices: Sequence[int]) -> None:
        """Give up the episodes of `indices`, which broke."""
        ...

    def deciding(self) -> Array:
        """Return the lanes that wait for an action, in order, int64 [N]."""
        ...

    def seen(self, slots: PolicySlots) -> tuple[Any, Any, Array | None]:
        """Return observations, masks and states of the lanes that wait in `slots`, for its `set_observations`."""
        ...

    def clear_actions(self) -> None:
        """Forget the actions of the last step."""
        ...

    def put_actions(self, slots: PolicySlots, action: Array) -> None:
        """Set the next actions of the lanes that wait in `slots`."""
        ...

    def step(self, deciding: Array, is_read: Array | None) -> LaneStep:
        """Take one env step in every environment with an episode, by the actions of the lanes `deciding`.

        `is_read` bool [S, lanes]: of which lanes the stepped info columns are read; None: there are none.
        """
        ...

    def finals(self, slots: PolicySlots, lanes: Array) -> Finals:
        """Return what `lanes` saw at the end, which are some of those that ended in the last step.

        Raises ObservationOutside if a final observation does not fit its space.
        """
        ...

    def close(self, deadline_s: float) -> list[Fault]:
        """Close all environments by `deadline_s` of time.perf_counter; return faults."""
        ...


def lanes_in(indices: Array, stride: int) -> Array:
    """Return the lanes of the environments `indices` [N], int64 [N * stride]."""
    lanes: Array = (indices[:, None] * stride + np.arange(stride)).reshape(-1)
    return lanes


def too_many_agents(most: int) -> str:
    """Return what is wrong with an environment of more than `most` agents without `possible_agents`."""
    return f"more than {most} agents appeared; declare possible_agents"
