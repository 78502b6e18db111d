"""Ring buffers of whole segments: one of rows, one of segments' bootstraps.

Numbers of rows and segments are never reused, so stored ones are a range. Each observation is stored once: a window
is followed by a later row, or by the bootstrap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import InvalidInput
from marlflow.base.info_columns import At
from marlflow.base.serialization import Tree
from marlflow.batches.batch import Batch, Transitions

_FEW_SEGMENTS = 64
_OF_WINDOWS = "reward", "discount", "next", "segment"


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """The columns that a store keeps, in addition to the windows of NStep; `optional` ones may be in no batch."""

    seen: Mapping[str, str]
    """Columns also needed after a row's window, each with the segment property that has it after the last row."""
    taken: Sequence[str]
    properties: Sequence[str] = ()
    """Properties of segments, stored unchanged."""
    optional: frozenset[str] = frozenset()
    present: Sequence[str] = ()
    """Columns whose true entries are agent steps; without any, each row is one agent step."""
    infos: Mapping[str, At] = field(default_factory=dict)
    """Columns of infos, stored too: of those that add up, n-step sums."""


DECISIONS = StoredColumns(
    seen={"obs": "bootstrap_obs", "action_mask": "bootstrap_mask"},
    taken=("action", "version"),
    optional=frozenset({"action_mask", "version"}),
)
"""The columns of one policy's rows."""


class SegmentStore:
    """Stores at most `capacity` rows in whole segments; a unit is a row."""

    row_name: ClassVar[str] = "agent steps"
    """The name of rows in errors."""

    __slots__ = (
        "_names",
        "_rows",
        "_segments",
        "agent_steps",
        "capacity",
        "first",
        "first_segment",
        "stop",
        "stop_segment",
        "sums",
    )

    def __init__(self, capacity: int, names: StoredColumns) -> None:
        self.capacity = capacity
        self._names = names
        self.sums = tuple(name for name, at in names.infos.items() if at == "sum")
        self.agent_steps = 0
        self.first = self.stop = 0
        self.first_segment = self.stop_segment = 0
        self._rows: Ring | None = None
        self._segments: Ring | None = None

    @property
    def infos(self) -> Mapping[str, At]:
        return self._names.infos

    @property
    def names(self) -> Collection[str]:
        return {*self._names.seen, *self._names.taken, *_OF_WINDOWS}

    @property
    def terms(self) -> Mapping[str, int]:
        return {}

    @property
    def units(self) -> tuple[int, int]:
        return self.first, self.stop

    def units_of(self, row_ids: Array) -> Array:
        return row_ids

    def units_in(self, agent_steps: int) -> int:
        return agent_steps

    def newest(self, batch: Batch) -> Batch:
        return newest_that_fit(batch, self.capacity)

    def make_room(self, rows: int, skipped: int = 0) -> tuple[int, int]:
        """Evict the oldest segments until `rows` more fit; return the units [first, stop) evicted.

        `skipped` earlier rows of the batch do not fit: everything is evicted, and they use up their numbers.
        """
        evicted_first, full = self.first, self.stop + rows - self.capacity
        if skipped:
            evicted = (evicted_first, self.stop)
            self.agent_steps = 0
            self.first = self.stop = self.stop + skipped
            self.first_segment = self.stop_segment
            return evicted
        if full > self.first:
            rows_ring, _ = self._rings()
            self._evict_through(int(rows_ring.columns["segment"][(full - 1) % self.capacity]))
        return evicted_first, self.first

    def _evict_through(self, segment: int) -> None:
        _, segments = self._rings()
        stop = int(segments.columns["stop"][segment % segments.size])
        self.agent_steps -= self._agent_steps_in(self.first, stop)
        self.first, self.first_segment = stop, segment + 1

    def _agent_steps_in(self, first: int, stop: int) -> int:
        if not self._names.present:
            return stop - first
        rows, _ = self._rings()
        return sum(int(np.count_nonzero(rows.span(name, first, stop))) for name in self._names.present)

    def append(self, batch: Batch) -> tuple[int, int]:
        first, segment = self.stop, self.stop_segment
        length = batch.segments["length"]
        numbers = np.arange(segment, segment + len(length))
        segment_of_row = np.repeat(numbers, length)
        names = self._names
        rows = _named(batch.columns, {name: name for name in (*names.seen, *names.taken, *names.infos)})
        windows = {"window_reward": "reward", "window_discount": "discount"}
        rows |= _named(batch.columns, windows)
        following = np.arange(first, first + len(segment_of_row)) + batch.columns["window_steps"]
        stop = first + np.cumsum(length)
        # The row after the window, or ~segment (negative) if the window bootstraps at its segment's end.
        rows["next"] = np.where(following == np.repeat(stop, length), ~segment_of_row, following)
        rows["segment"] = segment_of_row
        ends = {name: batch.segments[after] for name, after in names.seen.items() if name in rows}
        ends |= {name: batch.segments[name] for name in names.properties}
        ends["stop"] = stop
        self._write(rows, ends, len(segment_of_row), len(numbers))
        return first, self.stop

    def _windows(self, row_ids: Array) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the columns of stored rows, [B, ...], and the columns seen after their windows."""
        rows, _ = self._rings()
        slots = row_ids % self.capacity
        columns = {name: ring.take(slots, axis=0) for name, ring in rows.columns.items() if name != "segment"}
        following = columns.pop("next")
        # Negative: the complement of a segment's number (see append).
        ended = np.flatnonzero(following < 0)
        return columns, {n: self._following(n, following, ended) for n in self._names.seen if n in columns}

    def rows(self, first: int) -> Tree:
        """Return the rows from `first`, a segment's start, on, with their segments; {} if there are none."""
        first = max(first, self.first)
        if first >= self.stop:
            return {}
        rows, segments = self._rings()
        segment = int(rows.columns["segment"][first % self.capacity])
        return {
            "first": first,
            "stop": self.stop,
            "first_segment": segment,
            "columns": {name: rows.span(name, first, self.stop) for name in rows.columns},
            "segments": {name: segments.span(name, segment, self.stop_segment) for name in segments.columns},
        }

    def begin_at(self, first: int, first_segment: int) -> None:
        self.first = self.stop = first
        self.first_segment = self.stop_segment = first_segment
        self.agent_steps = 0
        self._rows = self._segments = None

    def load(self, saved: Sequence[Tree]) -> None:
        """Restore what `rows` returned, in order, after `begin_at`; evicted rows are skipped."""
        for part in saved:
            if not part or part["stop"] <= self.first:
                continue
            columns, segments, old = part["columns"], part["segments"], self.stop - part["first"]
            if old > 0:
                old_segments = self.stop_segment - part["first_segment"]
                columns = {name: column[old:] for name, column in columns.items()}
                segments = {name: column[old_segments:] for name, column in segments.items()}
            self._write(columns, segments, len(columns["segment"]), len(segments["stop"]))

    def check(self, batch: Batch) -> None:
        length = batch.segments["length"]
        if not batch.rows:
            raise InvalidInput(["a replay was given a batch without rows"])
        if int(length.min()) < 1 or int(length.sum()) != batch.count:
            raise InvalidInput([f"a batch of {batch.count} rows says its segments have lengths {length.tolist()}"])
        if (longest := int(length.max())) > self.capacity:
            text = f"a segment of {longest} {self.row_name} does not fit a replay of {self.capacity}"
            raise InvalidInput([f"{text}; raise its capacity_agent_steps or lower rollouts.fragment_env_steps"])
        if problems := list(self._column_problems(batch)):
            raise InvalidInput(problems)

    def _column_problems(self, batch: Batch) -> Iterator[str]:
        # The first batch defines the columns' types.
        known, names = batch.columns if self._rows is None else self._rows.columns, self._names
        for name in ("window_reward", "window_discount", "window_steps"):
            if name not in batch.columns:
                yield f"the batch has no {name!r}: put NStep before Insert"
        for name in sorted(names.optional):
            if (name in known) != (name in batch.columns):
                having = "with" if name in known else "without"
                what = "an action mask" if name == "action_mask" else repr(name)
                yield f"this replay holds rows {having} {what}, and the batch is not so"
        stored_as_they_are = [*names.seen, *names.taken, *(name for name in names.infos if name not in self.sums)]
        required = [name for name in stored_as_they_are if name in known or name not in names.optional]
        pairs = [(name, name, batch.columns) for name in required]
        pairs += [(name, after, batch.segments) for name, after in names.seen.items() if name in required]
        for stored, name, table in pairs:
            if name not in table and (stored in batch.columns or stored not in names.optional):
                yield f"the batch has no {name!r}, which a replay stores"
            elif name in table and stored in known and (text := _type_problem(name, table[name], known[stored])):
                yield text
        yield from (
            f"the batch has no {name!r}, which a replay stores" for name in self.sums if name not in batch.columns
        )
        for name in names.properties:
            if name not in batch.segments:
                yield f"the batch's segments have no {name!r}, which this replay stores"

    def _write(self, rows: Mapping[str, Array], ends: Mapping[str, Array], row_count: int, segment_count: int) -> None:
        if self._rows is None or self._segments is None:
            self._rows, self._segments = Ring(self.capacity, rows), Ring(_FEW_SEGMENTS, ends)
        # Segments vary in length, so their ring grows; the ring of rows never does.
        needed, size = self.stop_segment + segment_count - self.first_segment, self._segments.size
        if needed > size:
            self._segments = self._segments.resized(max(needed, 2 * size), self.first_segment, self.stop_segment)
        self._rows.write(self.stop, rows)
        self._segments.write(self.stop_segment, ends)
        self.stop += row_count
        self.stop_segment += segment_count
        self.agent_steps += self._agent_steps_in(self.stop - row_count, self.stop)

    def _following(self, name: str, following: Array, ended: Array) -> Array:
        rows, segments = self._rings()
        values = rows.columns[name].take(following % self.capacity, axis=0)
        values[ended] = segments.columns[name].take(~following[ended] % segments.size, axis=0)
        return values

    def _rings(self) -> tuple[Ring, Ring]:
        assert self._rows is not None, "rows are alive only after an insert"
        assert self._segments is not None, "both rings are made by the first insert"
        return self._rows, self._segments


class TransitionStore(SegmentStore):
    """Stores one policy's rows, drawn as transitions."""

    __slots__ = ()

    def __init__(self, capacity: int, infos: Mapping[str, At]) -> None:
        super().__init__(capacity, replace(DECISIONS, infos=infos))

    def take(self, units: Array, weight: Array) -> Transitions:
        columns, after = self._windows(units)
        return Transitions(
            obs=columns["obs"],
            action=columns["action"],
            reward=columns["reward"],
            discount=columns["discount"],
            next_obs=after["obs"],
            weight=weight,
            row_id=units,
            action_mask=columns.get("action_mask"),
            next_mask=after.get("action_mask"),
            version=columns.get("version"),
            infos={name: columns[name] for name in self._names.infos},
        )


def newest_that_fit(batch: Batch, capacity: int) -> Batch:
    """Return the newest segments of `batch` with at most `capacity` rows."""
    if batch.count <= capacity:
        return batch
    return batch.only(np.cumsum(batch.segments["length"][::-1])[::-1] <= capacity)


def _named(table: Mapping[str, Array], names: Mapping[str, str]) -> dict[str, Array]:
    return {new: table[old] for old, new in names.items() if old in table}


def _type_problem(name: str, came: Array, expected: Array) -> str:
    if came.dtype == expected.dtype and came.shape[1:] == expected.shape[1:]:
        return ""
    return f"{name!r} of the batch is {row_type(came)}, expected {row_type(expected)}"


def row_type(column: Array) -> str:
    """Describe a column's dtype and row shape."""
    return f"{column.dtype}{list(column.shape[1:])} per row"


class Ring:
    """Preallocated columns, [size, ...] each; the owner tracks valid entries."""

    __slots__ = ("columns", "size")

    def __init__(self, size: int, like: Mapping[str, Array]) -> None:
        self.size = size
        self.columns = {name: np.zeros((size, *column.shape[1:]), column.dtype) for name, column in like.items()}

    def write(self, first: int, columns: Mapping[str, Array]) -> None:
        """Store at most `size` entries of every column, from number `first` on."""
        for name, ring in self.columns.items():
            column = columns[name]
            for slots, offset in pieces(first, first + len(column), self.size):
                ring[slots] = column[offset : offset + slots.stop - slots.start]

    def span(self, name: str, first: int, stop: int) -> Array:
        """Return a copy of entries [first, stop) of a column."""
        # An empty slice first, since concatenate needs at least one array even if the range is empty.
        ring = self.columns[name]
        return np.concatenate([ring[:0], *(ring[slots] for slots, _ in pieces(first, stop, self.size))])

    def resized(self, size: int, first: int, stop: int) -> Ring:
        """Return a ring of another size with entries [first, stop)."""
        ring = Ring(size, self.columns)
        ring.write(first, {name: self.span(name, first, stop) for name in self.columns})
        return ring


def pieces(first: int, stop: int, size: int) -> list[tuple[slice, int]]:
    """Return the slots of entries [first, stop), as slices with offsets from `first`.

    >>> pieces(8, 12, 10)
    [(slice(8, 10, None), 0), (slice(0, 2, None), 2)]
    """
    if first == stop:
        return []
    start, count = first % size, stop - first
    if start + count <= size:
        return [(slice(start, start + count), 0)]
    return [(slice(start, size), 0), (slice(0, start + count - size), size - start)]
