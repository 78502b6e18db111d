"""The sequence replay buffer of recurrent learners, and the split of segments (Kapturowski et al., 2019, section 2.3).

"Recurrent Experience Replay in Distributed Reinforcement Learning", https://openreview.net/forum?id=r1lyTjAqYX

A sequence from SplitSegments is stored as a segment, with the memory before its burn-in. Burn-in rows are rows of
preceding sequences, so each row is stored once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import InvalidInput
from marlflow.base.info_columns import At
from marlflow.batches.batch import MEMORY_COLUMNS, Batch
from marlflow.batches.sequences import SequenceTransitions
from marlflow.flow import Place
from marlflow.replay.buffer import StoredReplay
from marlflow.replay.sampling import Sampling
from marlflow.replay.segments import DECISIONS, SegmentStore, StoredColumns, newest_that_fit

_BOOTSTRAP = "bootstrap_"


class SequenceReplay(StoredReplay[SequenceTransitions]):
    """A replay buffer of sequences; a draw takes agent_steps / length of them.

    Batches need SplitSegments with the same `length` and `burn_in`, then NStep with the same `n_step` and `discount`.
    Priorities are per sequence. Sequences with common burn-in rows are evicted together.
    """

    __slots__ = ()

    def __init__(
        self,
        capacity_agent_steps: int,
        length: int,
        burn_in: int,
        n_step: int,
        discount: float,
        seed: int,
        sampling: Sampling,
        name: str = "replay",
        place: Place | None = None,
        infos: Mapping[str, At] | None = None,
    ) -> None:
        store = TransitionSequenceStore(capacity_agent_steps, length, burn_in, infos or {})
        super().__init__(store, n_step, discount, seed, sampling, name, place)


class SequenceSteps(NamedTuple):
    """Where the steps of S drawn sequences are: up to B of burn-in, and up to L trained rows."""

    ends: Mapping[str, Array]
    """The sequences' properties, and the values after their last rows, [S, ...] each."""
    first: Array
    """The first trained row, [S, 1]."""
    burned: Array
    """Bool [S, B + L + 1]: which rows of burn-in and trained rows exist."""
    step: Array
    """[B + L + 1], from -B."""
    trained: Array
    """Bool [S, L]: which trained rows exist."""

    @property
    def after(self) -> tuple[Array, Array]:
        """The sequence and the step, from -B, after each sequence's last row."""
        burn_in = self.burned.shape[1] - self.trained.shape[1] - 1
        return np.arange(len(self.first)), self.ends["length"] + burn_in

    @property
    def valid(self) -> Array:
        """Bool [S, B + L + 1]: which observations exist; one follows each sequence's last row."""
        valid = self.burned.copy()
        valid[self.after] = True
        return valid


class SequenceStore(SegmentStore):
    """Stores sequences of at most `length` rows, its units; raises InvalidInput for invalid sizes."""

    __slots__ = ("burn_in", "length")

    def __init__(self, capacity: int, length: int, burn_in: int, names: StoredColumns, memory: Sequence[str]) -> None:
        if broken := sequence_problems(length, burn_in):
            raise InvalidInput([f"a replay of sequences: {problem}" for problem in broken])
        super().__init__(capacity, replace(names, properties=("length", "burn_in", *memory)))
        self.length, self.burn_in = length, burn_in

    @property
    def terms(self) -> Mapping[str, int]:
        return {"length": self.length, "burn_in": self.burn_in}

    @property
    def units(self) -> tuple[int, int]:
        return self.first_segment, self.stop_segment

    def units_of(self, row_ids: Array) -> Array:
        if not len(row_ids):
            return row_ids
        rows, _ = self._rings()
        numbers: Array = rows.columns["segment"].take(row_ids % self.capacity)
        return numbers

    def check(self, batch: Batch) -> None:
        super().check(batch)
        length, burn_in = batch.segments["length"], batch.segments["burn_in"]
        if length.max() > self.length or burn_in.max() > self.burn_in or burn_in[0] > 0:
            text = f"this replay holds sequences of length={self.length} and burn_in={self.burn_in}, but others came"
            raise InvalidInput([f"{text}: give SplitSegments the same settings"])
        # A sequence without burn-in starts a new group; the rest of the group depends on its rows.
        together = np.add.reduceat(length, np.flatnonzero(burn_in == 0))
        if (longest := int(together.max())) > self.capacity:
            text = f"sequences of {longest} {self.row_name} share rows, and do not fit a replay of {self.capacity}"
            raise InvalidInput([f"{text}; raise its capacity_agent_steps or lower rollouts.fragment_env_steps"])

    def newest(self, batch: Batch) -> Batch:
        fits = newest_that_fit(batch, self.capacity)
        if fits is batch:
            return batch
        # Start at a sequence without burn-in: the burn-in rows of other sequences would not be stored.
        begins = np.argmax(fits.segments["burn_in"] == 0)
        return fits.only(np.arange(len(fits.segments["length"])) >= begins)

    def make_room(self, rows: int, skipped: int = 0) -> tuple[int, int]:
        evicted_first = self.first_segment
        super().make_room(rows, skipped)
        # Also evict the sequences whose burn-in rows are gone.
        while self.first < self.stop and self._segment("burn_in", self.first_segment) > 0:
            self._evict_through(self.first_segment)
        return evicted_first, self.first_segment

    def append(self, batch: Batch) -> tuple[int, int]:
        first_segment = self.stop_segment
        super().append(batch)
        return first_segment, self.stop_segment

    def _steps(self, units: Array) -> SequenceSteps:
        _, segments = self._rings()
        ends = {name: ring.take(units % segments.size, axis=0) for name, ring in segments.columns.items()}
        length, first = ends["length"][:, None], (ends["stop"] - ends["length"])[:, None]
        step = np.arange(-self.burn_in, self.length + 1)
        burned = (step >= -ends["burn_in"][:, None]) & (step < length)
        return SequenceSteps(ends, first, burned, step, step[self.burn_in : -1] < length)

    def _seen(self, name: str, steps: SequenceSteps) -> Array:
        """Return a column, [S, B + L + 1, ...], with the value after each sequence's last row."""
        column = self._at(name, steps.first + steps.step, steps.burned)
        column[steps.after] = steps.ends[name]
        return column

    def _trained(self, name: str, steps: SequenceSteps) -> Array:
        """Return a column of trained rows, [S, L, ...]."""
        return self._at(name, steps.first + np.arange(self.length), steps.trained)

    def _infos(self, steps: SequenceSteps) -> dict[str, Array]:
        return {name: self._trained(name, steps) for name in self._names.infos}

    def _after_windows(self, steps: SequenceSteps) -> Array:
        """Return the step after each trained row's window, [S, L]."""
        following = self._trained("next", steps)
        # Negative means that the window ends with the sequence.
        within = np.where(following < 0, steps.ends["length"][:, None], following - steps.first)
        return np.where(steps.trained, within, 0)

    def _at(self, name: str, row: Array, valid: Array) -> Array:
        rows, _ = self._rings()
        column: Array = rows.columns[name].take(row % self.capacity, axis=0)
        column[~valid] = 0
        return column

    def _segment(self, name: str, number: int) -> Array:
        _, segments = self._rings()
        value: Array = segments.columns[name][number % segments.size]
        return value


class TransitionSequenceStore(SequenceStore):
    """Stores sequences of one policy's rows."""

    __slots__ = ()

    def __init__(self, capacity: int, length: int, burn_in: int, infos: Mapping[str, At]) -> None:
        super().__init__(capacity, length, burn_in, replace(DECISIONS, infos=infos), ["memory"])

    def units_in(self, agent_steps: int) -> int:
        return max(1, agent_steps // self.length)

    def take(self, units: Array, weight: Array) -> SequenceTransitions:
        steps = self._steps(units)
        return SequenceTransitions(
            obs=self._seen("obs", steps),
            valid=steps.valid,
            memory=steps.ends["memory"],
            trained=steps.trained,
            action=self._trained("action", steps),
            reward=self._trained("reward", steps),
            discount=self._trained("discount", steps),
            following=self._after_windows(steps),
            weight=weight,
            row_id=steps.first[:, 0],
            version=self._trained("version", steps)[steps.trained],
            mask=self._mask(steps) if "action_mask" in steps.ends else None,
            infos=self._infos(steps),
        )

    def _mask(self, steps: SequenceSteps) -> Array:
        mask = self._seen("action_mask", steps)[:, self.burn_in :]
        # All actions are legal at padding, so that no softmax or max is over nothing.
        mask[~steps.valid[:, self.burn_in :]] = True
        return mask


def split(batch: Batch, length: int, burn_in: int) -> Batch:
    """Split a batch with columns of memory, as SplitSegments describes."""
    segments, columns = batch.segments, batch.columns
    parts = -(-segments["length"] // length)
    # The segment of each sequence, and the sequence's index in its segment.
    parent = np.repeat(np.arange(len(parts)), parts)
    number = np.arange(len(parent)) - np.repeat(np.cumsum(parts) - parts, parts)
    start = _start(segments["length"][parent], parts[parent], number)
    stop = _start(segments["length"][parent], parts[parent], number + 1)
    first = (batch.ends() + 1 - segments["length"])[parent] + start
    last = number == parts[parent] - 1
    before = np.minimum(start, burn_in)
    properties = {name: column[parent] for name, column in segments.items() if name not in MEMORY_COLUMNS}
    # Only a segment's last sequence ends as the segment does; others bootstrap from the next sequence's first row.
    properties |= {name: properties[name] & last for name in ("terminated", "truncated") if name in properties}
    if "carried" in properties:
        properties["carried"] &= number == 0
    if "seats_left_early" in properties:
        properties["seats_left_early"] = np.where(last, properties["seats_left_early"], 0)
    # Index 0 is a placeholder: the last sequence uses the segment's own bootstrap.
    after = np.where(last, 0, first + stop - start)
    for name in properties:
        if (column := _column_of(name)) in columns:
            properties[name] = _where(last, properties[name], columns[column][after])
    memories = memory_columns(batch)
    properties |= {"length": stop - start, "burn_in": before}
    properties |= {name: columns[name][first - before] for name in memories}
    return type(batch)({name: column for name, column in columns.items() if name not in memories}, properties)


def memory_columns(batch: Batch) -> list[str]:
    """Return the columns of memory: `memory`, or of joint rows one for each policy, `p:memory`."""
    return [name for name in batch.columns if name.rpartition(":")[2] == "memory"]


def _column_of(segment_property: str) -> str:
    """Return the column that a bootstrap continues; empty for other properties."""
    if not segment_property.startswith(_BOOTSTRAP):
        return ""
    policy, colon, name = segment_property.removeprefix(_BOOTSTRAP).rpartition(":")
    return f"{policy}{colon}{'action_mask' if name == 'mask' else name}"


def sequence_problems(length: int, burn_in: int) -> list[str]:
    """Return problems with these settings, in rows."""
    rules = {
        f"sequence_length is at least 1, not {length}": length >= 1,
        f"burn_in is at least 0, not {burn_in}": burn_in >= 0,
    }
    return [rule for rule, holds in rules.items() if not holds]


def _start(length: Array, parts: Array, number: Array) -> Array:
    # The first `over` parts have one row more.
    each, over = length // parts, length % parts
    start: Array = number * each + np.minimum(number, over)
    return start


def _where(condition: Array, if_true: Array, if_false: Array) -> Array:
    selected: Array = np.where(condition.reshape(-1, *[1] * (if_true.ndim - 1)), if_true, if_false)
    return selected
