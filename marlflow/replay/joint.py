"""The replay buffer of joint rows, for mixers and action critics: what all members did at one env step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from marlflow.base.batch import Array, Batch
from marlflow.base.joint_transitions import JointTransitions
from marlflow.base.serialization import Tree
from marlflow.flow import Place
from marlflow.replay.buffer import StoredReplay
from marlflow.replay.sampling import Sampling
from marlflow.replay.segments import SegmentStore, StoredColumns

_NEXT_NAMES = {"action_mask": "mask"}


class JointReplay(StoredReplay[JointTransitions]):
    """A replay buffer of joint rows, drawn as n-step transitions of the team; sizes are in agent steps.

    `seats` has each policy's number of agents, K in all: there is room for capacity_agent_steps / K joint rows, and a
    draw takes agent_steps / K of them. Batches need JoinSegments, then NStep with the same `n_step` and `discount`.
    """

    __slots__ = ()

    def __init__(
        self,
        capacity_agent_steps: int,
        seats: Mapping[str, int],
        n_step: int,
        discount: float,
        seed: int,
        sampling: Sampling,
        name: str = "replay",
        place: Place | None = None,
    ) -> None:
        store = JointStore(capacity_agent_steps, seats)
        terms = {f"seats of {policy}": count for policy, count in seats.items()}
        super().__init__(store, n_step, discount, seed, sampling, name, place, terms)


class JointStore(SegmentStore):
    """Stores joint rows, its units."""

    __slots__ = ("_agent_steps", "_num_seats", "_present")

    row_name: ClassVar[str] = "env steps"

    def __init__(self, capacity_agent_steps: int, seats: Mapping[str, int]) -> None:
        self._num_seats = sum(seats.values())
        self._present = [f"{policy}:present" for policy in seats]
        self._agent_steps = 0
        # At least one joint row, unless the capacity itself is none.
        capacity = max(min(1, capacity_agent_steps), capacity_agent_steps // self._num_seats)
        super().__init__(capacity, joint_columns(seats))

    @property
    def agent_steps(self) -> int:
        return self._agent_steps

    def units_in(self, agent_steps: int) -> int:
        return max(1, agent_steps // self._num_seats)

    def make_room(self, rows: int, skipped: int = 0) -> tuple[int, int]:
        evicted = super().make_room(rows, skipped)
        self._agent_steps -= self._present_in(*evicted)
        return evicted

    def append(self, batch: Batch) -> tuple[int, int]:
        units = super().append(batch)
        self._agent_steps += batch.rows
        return units

    def begin_at(self, first: int, first_segment: int) -> None:
        super().begin_at(first, first_segment)
        self._agent_steps = 0

    def load(self, saved: Sequence[Tree]) -> None:
        super().load(saved)
        self._agent_steps = self._present_in(self.first, self.stop)

    def take(self, units: Array, weight: Array) -> JointTransitions:
        columns, after = self._windows(units)
        columns |= {next_name(name): column for name, column in after.items()}
        return JointTransitions({**columns, "weight": weight, "row_id": units})

    def _present_in(self, first: int, stop: int) -> int:
        if first == stop:
            return 0
        rows, _ = self._rings()
        return sum(int(rows.span(name, first, stop).sum()) for name in self._present)


def joint_columns(policies: Mapping[str, int]) -> StoredColumns:
    """Return the columns of JointSegments that a replay of `policies` stores."""
    names = ("obs", "action_mask", "present")
    seen = {f"{p}:{name}": f"bootstrap_{p}:{_NEXT_NAMES.get(name, name)}" for p in policies for name in names}
    taken = [f"{policy}:{name}" for policy in policies for name in ("action", "reward", "terminated")]
    optional = {"state", *(f"{policy}:action_mask" for policy in policies)}
    return StoredColumns({**seen, "state": "bootstrap_state"}, (*taken, "version"), optional=frozenset(optional))


def next_name(column: str) -> str:
    """Return the name of a column after a window.

    >>> [next_name(name) for name in ("state", "prey:obs", "prey:action_mask")]
    ['next_state', 'prey:next_obs', 'prey:next_mask']
    """
    policy, colon, name = column.rpartition(":")
    return f"{policy}{colon}next_{_NEXT_NAMES.get(name, name)}"
