"""The sequence replay buffer of recurrent learners (Kapturowski et al., 2019, section 2.3).

"Recurrent Experience Replay in Distributed Reinforcement Learning", https://openreview.net/forum?id=r1lyTjAqYX

A sequence from SplitSegments is stored as a segment, with the memory before its burn-in. Burn-in rows are rows of
preceding sequences, so each row is stored once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from marlflow.base.batch import Array, Batch
from marlflow.base.errors import InvalidInput
from marlflow.base.sequence_transitions import SequenceTransitions
from marlflow.flow import Place
from marlflow.replay.buffer import StoredReplay
from marlflow.replay.sampling import Sampling
from marlflow.replay.segments import DECISIONS, SegmentStore, newest_that_fit
from marlflow.replay.splitting import sequence_problems


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
    ) -> None:
        if broken := sequence_problems(length, burn_in):
            raise InvalidInput([f"replay {name!r}: {problem}" for problem in broken])
        store = SequenceStore(capacity_agent_steps, length, burn_in)
        terms = {"length": length, "burn_in": burn_in}
        super().__init__(store, n_step, discount, seed, sampling, name, place, terms)


class SequenceStore(SegmentStore):
    """Stores sequences of at most `length` rows, its units."""

    __slots__ = ("burn_in", "length")

    def __init__(self, capacity: int, length: int, burn_in: int) -> None:
        super().__init__(capacity, replace(DECISIONS, properties=("length", "burn_in", "memory")))
        self.length, self.burn_in = length, burn_in

    @property
    def units(self) -> tuple[int, int]:
        return self.first_segment, self.stop_segment

    def units_of(self, row_ids: Array) -> Array:
        if not len(row_ids):
            return row_ids
        rows, _ = self._rings()
        numbers: Array = rows.columns["segment"].take(row_ids % self.capacity)
        return numbers

    def units_in(self, agent_steps: int) -> int:
        return max(1, agent_steps // self.length)

    def check(self, batch: Batch) -> None:
        super().check(batch)
        length, burn_in = batch.segments["length"], batch.segments["burn_in"]
        if length.max() > self.length or burn_in.max() > self.burn_in or burn_in[0] > 0:
            text = f"this replay holds sequences of length={self.length} and burn_in={self.burn_in}, but others came"
            raise InvalidInput([f"{text}: give SplitSegments the same settings"])
        # A sequence without burn-in starts a new group; the rest of the group depends on its rows.
        together = np.add.reduceat(length, np.flatnonzero(burn_in == 0))
        if (longest := int(together.max())) > self.capacity:
            text = f"sequences of {longest} agent steps share rows, and do not fit a replay of {self.capacity}"
            raise InvalidInput([f"{text}; raise its capacity_agent_steps or lower rollouts.fragment_env_steps"])

    def newest(self, batch: Batch) -> Batch:
        fits = newest_that_fit(batch, self.capacity)
        if fits is batch:
            return batch
        # Start at a sequence without burn-in: the burn-in rows of those before it would not be stored.
        begins = np.argmax(fits.segments["burn_in"] == 0)
        return fits.only(np.arange(len(fits.segments["length"])) >= begins)

    def make_room(self, rows: int, skipped: int = 0) -> tuple[int, int]:
        evicted_first = self.first_segment
        super().make_room(rows, skipped)
        # Also evict the sequences whose burn-in rows are gone.
        while self.first < self.stop and self._segment("burn_in", self.first_segment) > 0:
            self.first = int(self._segment("stop", self.first_segment))
            self.first_segment += 1
        return evicted_first, self.first_segment

    def append(self, batch: Batch) -> tuple[int, int]:
        first_segment = self.stop_segment
        super().append(batch)
        return first_segment, self.stop_segment

    def take(self, units: Array, weight: Array) -> SequenceTransitions:
        _, segments = self._rings()
        ends = {name: ring.take(units % segments.size, axis=0) for name, ring in segments.columns.items()}
        length, first = ends["length"][:, None], (ends["stop"] - ends["length"])[:, None]
        # Time steps of the result: burn-in, trained rows, and the observation after the last.
        step = np.arange(-self.burn_in, self.length + 1)
        trained = step[self.burn_in : -1] < length
        behind = (np.arange(len(units)), ends["length"])
        row = first + step[self.burn_in : -1]
        window = {name: self._at(name, row, trained) for name in ("action", "reward", "discount", "next")}
        obs = self._at("obs", first + step, (step >= -ends["burn_in"][:, None]) & (step < length))
        # The bootstrap observation follows each sequence's last row.
        obs[behind[0], behind[1] + self.burn_in] = ends["obs"]
        return SequenceTransitions(
            obs=obs,
            valid=(step >= -ends["burn_in"][:, None]) & (step <= length),
            memory=ends["memory"],
            trained=trained,
            action=window["action"],
            reward=window["reward"],
            discount=window["discount"],
            # A negative `next` means that the window ends with the sequence.
            following=np.where(trained, np.where(window["next"] < 0, length, window["next"] - first), 0),
            weight=weight,
            row_id=first[:, 0],
            version=self._at("version", row, trained)[trained],
            mask=self._mask(first, trained, ends["action_mask"]) if "action_mask" in ends else None,
        )

    def _mask(self, first: Array, trained: Array, last: Array) -> Array:
        count, steps = trained.shape
        # All actions are legal at padding, so that no softmax or max is over nothing.
        mask = np.ones((count, steps + 1, *last.shape[1:]), bool)
        mask[:, :-1][trained] = self._at("action_mask", first + np.arange(steps), trained)[trained]
        mask[np.arange(count), trained.sum(1)] = last
        return mask

    def _at(self, name: str, row: Array, valid: Array) -> Array:
        rows, _ = self._rings()
        column: Array = rows.columns[name].take(row % self.capacity, axis=0)
        column[~valid] = 0
        return column

    def _segment(self, name: str, number: int) -> Array:
        _, segments = self._rings()
        value: Array = segments.columns[name][number % segments.size]
        return value
