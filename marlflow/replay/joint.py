"""Stores of joint rows for replay buffers, for mixers and action critics: all members' decisions of one env step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, TypeAlias

from marlflow.base.arrays import Array
from marlflow.base.info_columns import At
from marlflow.batches.joint_segments import JointSequenceTransitions, JointTransitions
from marlflow.replay.segments import SegmentStore, StoredColumns
from marlflow.replay.sequences import SequenceStore

InfosOf: TypeAlias = Mapping[str, Mapping[str, At]]
"""Each policy's columns of infos."""

_TAKEN = ("action", "reward", "terminated")
_AFTER = {"action_mask": "mask"}
"""Names of columns after a window or segment, if they differ."""


class JointStore(SegmentStore):
    """Stores joint rows, its units, drawn as n-step transitions of the team; sizes are in agent steps.

    `seats` has each policy's number of agents, K in all, and `infos` its columns of infos. There is room for
    capacity_agent_steps / K joint rows, and a draw takes agent_steps / K of them. Batches need JoinSegments and NStep.
    """

    __slots__ = ("_seats",)

    row_name: ClassVar[str] = "joint rows"

    def __init__(self, capacity_agent_steps: int, seats: Mapping[str, int], infos: InfosOf | None = None) -> None:
        super().__init__(_joint_rows(capacity_agent_steps, seats), joint_columns(seats, infos or {}))
        self._seats = dict(seats)

    @property
    def terms(self) -> Mapping[str, int]:
        return _seat_terms(self._seats)

    def units_in(self, agent_steps: int) -> int:
        return max(1, agent_steps // sum(self._seats.values()))

    def take(self, units: Array, weight: Array) -> JointTransitions:
        columns, after = self._windows(units)
        columns |= {next_name(name): column for name, column in after.items()}
        return JointTransitions({**columns, "weight": weight, "row_id": units})


class JointSequenceStore(SequenceStore):
    """Stores sequences of joint rows, its units, for recurrent policies; capacity and draws are in agent steps.

    `length` and `burn_in` are in joint rows: agent steps of one agent. A draw takes agent_steps / (K * length)
    sequences. Batches need JoinSegments, SplitSegments with the same `length` and `burn_in`, then NStep.
    """

    __slots__ = ("_seats",)

    row_name: ClassVar[str] = "joint rows"

    def __init__(
        self,
        capacity_agent_steps: int,
        seats: Mapping[str, int],
        length: int,
        burn_in: int,
        infos: InfosOf | None = None,
    ) -> None:
        memory, names = [f"{policy}:memory" for policy in seats], joint_columns(seats, infos or {})
        super().__init__(_joint_rows(capacity_agent_steps, seats), length, burn_in, names, memory)
        self._seats = dict(seats)

    @property
    def terms(self) -> Mapping[str, int]:
        return {**_seat_terms(self._seats), **super().terms}

    def units_in(self, agent_steps: int) -> int:
        return max(1, agent_steps // (sum(self._seats.values()) * self.length))

    def take(self, units: Array, weight: Array) -> JointSequenceTransitions:
        steps = self._steps(units)
        columns = {name: self._trained(name, steps) for name in ("reward", "discount", "version")}
        columns |= {"valid": steps.valid, "trained": steps.trained, "following": self._after_windows(steps)}
        columns |= {"weight": weight, "row_id": steps.first[:, 0], **self._infos(steps)}
        if "state" in steps.ends:
            columns["state"] = self._seen("state", steps)
        for policy in self._seats:
            columns[f"{policy}:obs"] = self._seen(f"{policy}:obs", steps)
            columns[f"{policy}:valid"] = self._seen(f"{policy}:present", steps)
            columns[f"{policy}:memory"] = steps.ends[f"{policy}:memory"]
            for name in _TAKEN:
                columns[f"{policy}:{name}"] = self._trained(f"{policy}:{name}", steps)
            if (mask := f"{policy}:action_mask") in steps.ends:
                columns[mask] = self._seen(mask, steps)[:, self.burn_in :]
        return JointSequenceTransitions(columns)


def joint_columns(policies: Iterable[str], infos: InfosOf) -> StoredColumns:
    """Return the columns of JointSegments that a replay of `policies`, with `infos` of each, stores."""
    names = ("obs", "action_mask", "present")
    seen = {f"{p}:{name}": f"bootstrap_{p}:{_AFTER.get(name, name)}" for p in policies for name in names}
    taken = [f"{policy}:{name}" for policy in policies for name in _TAKEN]
    return StoredColumns(
        seen={**seen, "state": "bootstrap_state"},
        taken=(*taken, "version"),
        optional=frozenset({"state", *(f"{policy}:action_mask" for policy in policies)}),
        present=[f"{policy}:present" for policy in policies],
        infos={f"{policy}:{name}": at for policy, named in infos.items() for name, at in named.items()},
    )


def next_name(column: str) -> str:
    """Return the name of a column after a window.

    >>> [next_name(name) for name in ("state", "prey:obs", "prey:action_mask")]
    ['next_state', 'prey:next_obs', 'prey:next_mask']
    """
    policy, colon, name = column.rpartition(":")
    return f"{policy}{colon}next_{_AFTER.get(name, name)}"


def _joint_rows(capacity_agent_steps: int, seats: Mapping[str, int]) -> int:
    # At least one, unless the capacity itself is none.
    return max(min(1, capacity_agent_steps), capacity_agent_steps // sum(seats.values()))


def _seat_terms(seats: Mapping[str, int]) -> dict[str, int]:
    return {f"seats of {policy}": count for policy, count in seats.items()}
