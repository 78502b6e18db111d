"""The reservoir: a uniform sample of all rows ever inserted, of fixed size.

Vitter, "Random sampling with a reservoir", 1985, https://doi.org/10.1145/3147.3165, algorithm R
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable, InvalidInput
from marlflow.base.random import RowRandom, key
from marlflow.base.serialization import Tree
from marlflow.batches.batch import Batch, Decisions
from marlflow.batches.items import Inserted
from marlflow.flow import Place
from marlflow.replay.segments import row_type

_COLUMNS = ("obs", "action", "action_mask", "version")
_OPTIONAL = ("action_mask", "version")


class Reservoir:
    """Holds each row ever inserted with the same probability, at most `capacity_agent_steps` of them.

    Rows are single decisions: observation, action, mask and version, without rewards or next observations. Draws are
    uniform, with replacement. Random numbers are a function of `seed` and of the numbers of rows inserted and drawn, so
    that the sample does not depend on how rows were divided into batches.

    A row that is taken in gets the next row number. A checkpoint has the rows stored since the last one: in total about
    capacity * (1 + log(inserted / capacity)) over a whole run. Raises InvalidInput.
    """

    __slots__ = (
        "_columns",
        "_drawn",
        "_emptied_at",
        "_inserted",
        "_numbers_by_slot",
        "_seed",
        "_stop",
        "_stored",
        "capacity",
        "name",
        "place",
    )

    def __init__(
        self, capacity_agent_steps: int, seed: int, name: str = "reservoir", place: Place | None = None
    ) -> None:
        if capacity_agent_steps < 1:
            raise InvalidInput([f"replay {name!r}: capacity_agent_steps is at least 1, not {capacity_agent_steps}"])
        self.capacity, self.name, self.place, self._seed = capacity_agent_steps, name, place, seed
        self._inserted = self._emptied_at = self._drawn = self._stop = self._stored = 0
        # As long as the columns: the number of the row in each slot; slots from `_stored` on are unused.
        self._numbers_by_slot = np.zeros(0, np.int64)
        self._columns: dict[str, Array] = {}

    @property
    def stored(self) -> int:
        """The agent steps stored."""
        return self._stored

    @property
    def _numbers(self) -> Array:
        """The number of the row in each slot that is in use, a view."""
        return self._numbers_by_slot[: self._stored]

    def insert(self, batch: Batch) -> Inserted:
        """Take in each row with the probability capacity / (rows inserted so far), in place of a random one."""
        columns = {name: batch.columns[name] for name in _COLUMNS if name in batch.columns}
        if problems := list(self._problems(batch, columns)):
            raise InvalidInput(problems)
        slots = self._slots(batch.rows)
        self._inserted += batch.rows
        taken_in = np.flatnonzero(slots < self.capacity)
        numbers = np.arange(self._stop, self._stop + len(taken_in))
        self._stop += len(taken_in)
        # If several rows are for one slot, the last one remains, as if they had been inserted one by one.
        slots, last = np.unique(slots[taken_in][::-1], return_index=True)
        last = len(taken_in) - 1 - last
        self._grow(int(slots[-1]) + 1 if len(slots) else 0, columns)
        self._numbers[slots] = numbers[last]
        for name, column in columns.items():
            self._columns[name][slots] = column[taken_in[last]]
        return Inserted(batch.rows, self.stored)

    def draw(self, agent_steps: int) -> Decisions:
        """Sample rows uniformly with replacement."""
        if agent_steps < 1:
            raise InvalidInput([f"a draw takes at least 1 agent step, not {agent_steps}"])
        if not self.stored:
            raise InvalidInput([f"replay {self.name!r} is empty: insert before drawing, or raise learning_starts"])
        slots = (self._uniform(b"draw", self._drawn, agent_steps) * self.stored).astype(np.int64)
        self._drawn += agent_steps
        columns = {name: column.take(slots, axis=0) for name, column in self._columns.items()}
        return Decisions(row_id=self._numbers.take(slots), **columns)

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        return

    def set_schedule(self, values: Mapping[str, float]) -> None:
        return

    def state(self) -> Tree:
        """Return a copy of everything but the rows."""
        return {
            "capacity": self.capacity,
            "inserted": self._inserted,
            "emptied_at": self._emptied_at,
            "drawn": self._drawn,
            "numbers": self._numbers.copy(),
            "first": int(self._numbers.min()) if self.stored else self._stop,
            "stop": self._stop,
        }

    def rows(self, first: int) -> Tree:
        """Return a copy of the rows with numbers from `first` on that are still stored; {} if there are none."""
        slots = np.flatnonzero(self._numbers >= first)
        if not len(slots):
            return {}
        slots = slots[np.argsort(self._numbers[slots])]
        numbers = self._numbers[slots]
        columns = {name: column[slots] for name, column in self._columns.items()}
        return {"first": int(numbers[0]), "stop": self._stop, "numbers": numbers, "columns": columns}

    def load_state(self, state: Tree, rows: Sequence[Tree]) -> None:
        """Restore `state`, with all results of `rows` up to then, in order; without rows, empty.

        Raises CheckpointUnusable if the capacity differs, or rows are missing.
        """
        if (saved := state.get("capacity")) != self.capacity:
            raise CheckpointUnusable(
                [f"replay {self.name!r}: expected capacity={self.capacity}, but it was kept with capacity={saved}"]
            )
        parts = [part for part in rows if part]
        self._inserted, self._emptied_at = state["inserted"], state["emptied_at"]
        self._drawn, self._stop = state["drawn"], state["stop"]
        self._stored, self._numbers_by_slot, self._columns = 0, np.zeros(0, np.int64), {}
        if parts:
            self._load_rows(np.array(state["numbers"]), parts)
        else:
            self.clear()

    def clear(self) -> None:
        """Empty the reservoir: its rows will be a sample of the rows inserted from now on."""
        self._emptied_at, self._stored = self._inserted, 0

    def begin_at(self, first_row_id: int) -> None:
        """Empty the reservoir; number new rows from `first_row_id`."""
        self.clear()
        self._stop = first_row_id

    def _slots(self, rows: int) -> Array:
        """Return the slot of each of the next rows, int64 [N]; `capacity` or more: it is not taken in."""
        before = np.arange(self._inserted, self._inserted + rows) - self._emptied_at
        random = (self._uniform(b"insert", self._inserted, rows) * (before + 1)).astype(np.int64)
        return np.where(before < self.capacity, before, random)

    def _uniform(self, purpose: bytes, first: int, count: int) -> Array:
        keys = np.full(count, key(self._seed, *purpose), np.uint64)
        return RowRandom(keys, np.arange(first, first + count)).uniform()

    def _grow(self, stored: int, columns: Mapping[str, Array]) -> None:
        """Use `stored` slots, at least; memory doubles as the rows grow, up to the capacity."""
        if stored <= self._stored:
            return
        size = len(self._numbers_by_slot)
        if stored > size:
            size = min(self.capacity, max(stored, 2 * size))
            self._columns = {
                name: _longer(self._columns.get(name, column[:0]), self._stored, size)
                for name, column in columns.items()
            }
            self._numbers_by_slot = _longer(self._numbers_by_slot, self._stored, size)
        self._stored = stored

    def _load_rows(self, numbers: Array, parts: Sequence[Tree]) -> None:
        saved = np.concatenate([part["numbers"] for part in parts])
        order = np.argsort(saved, kind="stable")
        places = np.searchsorted(saved, numbers, sorter=order)
        if len(saved) == 0 or (places >= len(saved)).any() or (saved[order[places]] != numbers).any():
            raise CheckpointUnusable([f"replay {self.name!r}: some of its {len(numbers):,} rows are missing"])
        columns: dict[str, Any] = {
            name: np.concatenate([part["columns"][name] for part in parts])[order[places]]
            for name in parts[0]["columns"]
        }
        self._grow(len(numbers), columns)
        self._numbers[:] = numbers
        for name, column in columns.items():
            self._columns[name][: len(numbers)] = column

    def _problems(self, batch: Batch, columns: Mapping[str, Array]) -> Iterator[str]:
        if not batch.rows:
            yield "a replay was given a batch without rows"
        known = self._columns or columns
        for name in _COLUMNS:
            if name not in columns and (name not in _OPTIONAL or name in known):
                yield f"the batch has no {name!r}, which replay {self.name!r} stores"
            elif name in columns and name not in known:
                yield f"the batch has {name!r}, and the rows in replay {self.name!r} have none"
            elif name in columns and row_type(columns[name]) != row_type(known[name]):
                yield f"{name!r} of the batch is {row_type(columns[name])}, expected {row_type(known[name])}"


def _longer(array: Array, used: int, size: int) -> Array:
    longer = np.zeros((size, *array.shape[1:]), array.dtype)
    longer[:used] = array[:used]
    return longer
