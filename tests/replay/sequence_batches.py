"""Batches of rows that remember, and what a replay of sequences must make of them, the plain way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch
from marlflow.batches.items import Inserted
from marlflow.batches.sequences import SequenceTransitions
from marlflow.replay.sequences import SequenceReplay
from marlflow.stages import Insert, NStep, SplitSegments

DISCOUNT = 0.9


@st.composite
def batches(draw: st.DrawFn, longest: int, masked: bool = False) -> Batch:
    """Segments of up to `longest` rows that end in every way, of uint8 images and memories of [2]."""
    segments = draw(st.lists(st.tuples(st.integers(1, longest), st.sampled_from("tuo")), min_size=1, max_size=6))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    length = np.array([length for length, _ in segments])
    rows, count = int(length.sum()), len(length)
    columns: dict[str, Array] = {
        "obs": generator.integers(1, 256, (rows, 2, 2), np.uint8),
        "action": generator.integers(0, 3, rows),
        "reward": generator.normal(size=rows),
        "version": generator.integers(0, 9, rows),
        "memory": generator.normal(size=(rows, 2)).astype(np.float32),
    }
    tables: dict[str, Array] = {
        "length": length,
        "terminated": np.array([end == "t" for _, end in segments]),
        "truncated": np.array([end == "u" for _, end in segments]),
        "carried": generator.random(count) < 0.5,
        "bootstrap_obs": generator.integers(1, 256, (count, 2, 2), np.uint8),
        "lane": np.arange(count),
    }
    if masked:
        columns["action_mask"] = generator.random((rows, 3)) < 0.5
        tables["bootstrap_mask"] = generator.random((count, 3)) < 0.5
    return Batch(columns, tables)


def put(replay: SequenceReplay, batch: Batch) -> Inserted:
    """Inserts `batch` as a plan does."""
    terms = replay.state()
    parts = SplitSegments(terms["length"], terms["burn_in"])(batch)
    return Insert()(NStep(terms["n_step"], terms["discount"])(parts), replay)


def segments_of(batch: Batch) -> list[dict[str, Any]]:
    """Each segment by itself: lists of its rows, and its properties."""
    found, row = list[dict[str, Any]](), 0
    for number, length in enumerate(batch.segments["length"].tolist()):
        segment: dict[str, Any] = {name: list(column[row : row + length]) for name, column in batch.columns.items()}
        found.append(segment | {name: column[number] for name, column in batch.segments.items()})
        row += length
    return found


@dataclass
class Reference:
    """A list of sequences, each with its own copy of all it needs, and evicted as it may be."""

    capacity: int
    length: int
    burn_in: int
    n_step: int
    sequences: list[dict[str, Any]] = field(default_factory=list)
    seen: int = 0

    def insert(self, batch: Batch) -> None:
        for segment in segments_of(batch):
            count = -(-segment["length"] // self.length)
            at = 0
            for rows in (len(part) for part in np.array_split(np.arange(segment["length"]), count)):
                self.sequences.append({"segment": segment, "at": at, "rows": rows, "first": self.seen})
                at, self.seen = at + rows, self.seen + rows
        while self.stored > self.capacity:
            self.sequences.pop(0)
        while self._before(self.sequences[0]):
            self.sequences.pop(0)

    @property
    def stored(self) -> int:
        return sum(sequence["rows"] for sequence in self.sequences)

    def _before(self, sequence: dict[str, Any]) -> int:
        return min(self.burn_in, sequence["at"])

    def check(self, drawn: SequenceTransitions) -> None:
        versions = list[int]()
        held = {sequence["first"]: sequence for sequence in self.sequences}
        for index, row_id in enumerate(drawn.row_id.tolist()):
            versions += self._check_one(drawn, index, held[row_id])
        assert drawn.version.tolist() == versions
        assert (drawn.count, drawn.rows) == (len(drawn.row_id), len(versions))

    def _check_one(self, drawn: SequenceTransitions, index: int, sequence: dict[str, Any]) -> list[int]:
        segment, at, rows, before = sequence["segment"], sequence["at"], sequence["rows"], self._before(sequence)
        ends = at + rows == segment["length"]
        steps = np.arange(-self.burn_in, self.length + 1)
        seen = {t: segment["obs"][at + t] for t in range(-before, rows)}
        seen[rows] = segment["bootstrap_obs"] if ends else segment["obs"][at + rows]
        np.testing.assert_array_equal(drawn.memory[index], segment["memory"][at - before])
        np.testing.assert_array_equal(drawn.valid[index], [t in seen for t in steps.tolist()])
        for column, t in enumerate(steps.tolist()):
            np.testing.assert_array_equal(drawn.obs[index, column], seen.get(t, 0))
        for t in range(self.length):
            self._check_row(drawn, (index, t), sequence)
        if drawn.mask is not None:
            legal = [*segment["action_mask"][at : at + rows]]
            legal.append(segment["bootstrap_mask"] if ends else segment["action_mask"][at + rows])
            legal += [np.ones(3, bool)] * (self.length - rows)
            np.testing.assert_array_equal(drawn.mask[index], legal)
        return [int(version) for version in segment["version"][at : at + rows]]

    def _check_row(self, drawn: SequenceTransitions, place: tuple[int, int], sequence: dict[str, Any]) -> None:
        segment, at, rows, t = sequence["segment"], sequence["at"], sequence["rows"], place[1]
        assert drawn.trained[place] == (t < rows)
        if t >= rows:
            found = drawn.action[place], drawn.reward[place], drawn.discount[place], drawn.following[place]
            assert found == (0, 0.0, 0.0, 0)
            return
        steps = min(self.n_step, rows - t)
        reward = sum(DISCOUNT**k * segment["reward"][at + t + k] for k in range(steps))
        over = segment["terminated"] and at + t + steps == segment["length"]
        np.testing.assert_allclose(drawn.reward[place], reward, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(drawn.discount[place], 0.0 if over else DISCOUNT**steps, rtol=1e-6)
        assert drawn.action[place] == segment["action"][at + t]
        assert drawn.following[place] == t + steps
