"""Joint batches as a plan brings them to a replay, and what it must make of them, by loops over single rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import marlflow as mf
from marlflow.batches.items import Inserted
from marlflow.batches.joint_segments import TeamReward, joint_segments
from tests.base.joint_episodes import SLOTS, batches_of, played

DISCOUNT = 0.9
SEATS = {policy: len(slots) for policy, slots in SLOTS.items()}
K = sum(SEATS.values())
# The names of columns after a window.
_NEXT = {"obs": "next_obs", "action_mask": "next_mask", "present": "next_present"}
_BOOTSTRAP = {"obs": "obs", "action_mask": "mask", "present": "present"}


@st.composite
def joint_batches(draw: st.DrawFn, team_reward: TeamReward = "sum") -> mf.Batch:
    """Joint segments of a few episodes, in which agents come and go."""
    segments = draw(played(idle=False).filter(bool))
    return joint_segments(batches_of(segments, draw(st.integers(0, 99))), SLOTS, team_reward)


def put(replay: mf.StoredReplay[Any], batch: mf.Batch) -> Inserted:
    """Insert `batch` as a plan does."""
    terms = replay.state()
    if "length" in terms:
        batch = mf.SplitSegments(terms["length"], terms["burn_in"])(batch)
    return mf.Insert()(mf.NStep(terms["n_step"], terms["discount"])(batch), replay)


def runs_of(batch: mf.Batch) -> list[dict[str, Any]]:
    """Return each run: its rows' columns, and its properties."""
    runs, row = list[dict[str, Any]](), 0
    for number, length in enumerate(batch.segments["length"].tolist()):
        run: dict[str, Any] = {name: column[row : row + length] for name, column in batch.columns.items()}
        runs.append(run | {name: column[number] for name, column in batch.segments.items()})
        row += length
    return runs


def agent_steps(run: dict[str, Any], rows: slice = slice(None)) -> int:
    return sum(int(run[f"{policy}:present"][rows].sum()) for policy in SEATS)


def window(run: dict[str, Any], at: int, n_step: int, stop: int) -> tuple[float, float, int]:
    """Return the reward, the discount and the rows of the window from row `at`, which ends before row `stop`."""
    reward, steps = 0.0, 0
    while steps < n_step and at + steps < stop:
        reward += DISCOUNT**steps * run["reward"][at + steps]
        steps += 1
    over = run["terminated"] and at + steps == run["length"]
    return reward, 0.0 if over else DISCOUNT**steps, steps


def seen(run: dict[str, Any], policy: str, name: str, at: int) -> Any:
    """Return what is seen at row `at`, or after the last row."""
    if at < run["length"]:
        return run[f"{policy}:{name}"][at]
    return run[f"bootstrap_{policy}:{_BOOTSTRAP[name]}"]


def state(run: dict[str, Any], at: int) -> Any:
    return run["state"][at] if at < run["length"] else run["bootstrap_state"]


@dataclass
class Reference:
    """A list of whole runs, the newest that fit."""

    capacity_agent_steps: int
    n_step: int
    runs: list[dict[str, Any]] = field(default_factory=list)
    inserted: int = 0

    def insert(self, batch: mf.Batch) -> None:
        for run in runs_of(batch):
            self.runs.append(run | {"first": self.inserted})
            self.inserted += run["length"]
        while sum(run["length"] for run in self.runs) > max(1, self.capacity_agent_steps // K):
            self.runs.pop(0)

    @property
    def stored(self) -> int:
        return sum(map(agent_steps, self.runs))

    def row_ids(self) -> set[int]:
        return {run["first"] + row for run in self.runs for row in range(run["length"])}

    def check(self, drawn: mf.JointTransitions) -> None:
        for index, row_id in enumerate(drawn.columns["row_id"].tolist()):
            run = next(run for run in self.runs if run["first"] <= row_id < run["first"] + run["length"])
            for name, expected in self.expected(run, row_id - run["first"]).items():
                actual = drawn.columns[name][index]
                if name in ("reward", "discount"):
                    assert actual == pytest.approx(expected, rel=1e-5, abs=1e-5)
                else:
                    assert np.array_equal(actual, expected), name
                    assert actual.dtype == np.asarray(expected).dtype

    def expected(self, run: dict[str, Any], at: int) -> dict[str, Any]:
        reward, discount, steps = window(run, at, self.n_step, run["length"])
        found = {"reward": reward, "discount": discount, "version": run["version"][at]}
        found |= {"state": run["state"][at], "next_state": state(run, at + steps)}
        for policy in SEATS:
            for name in ("obs", "action", "reward", "terminated", "present", "action_mask"):
                if f"{policy}:{name}" in run:
                    found[f"{policy}:{name}"] = run[f"{policy}:{name}"][at]
                    if name in _NEXT:
                        found[f"{policy}:{_NEXT[name]}"] = seen(run, policy, name, at + steps)
        return found


@dataclass
class SequenceReference:
    """A list of sequences, each with the run that it is of."""

    capacity_agent_steps: int
    length: int
    burn_in: int
    n_step: int
    sequences: list[tuple[dict[str, Any], int, int, int]] = field(default_factory=list)
    inserted: int = 0

    def insert(self, batch: mf.Batch) -> None:
        for run in runs_of(batch):
            at = 0
            for part in np.array_split(np.arange(run["length"]), -(-run["length"] // self.length)):
                self.sequences.append((run, at, len(part), self.inserted))
                at, self.inserted = at + len(part), self.inserted + len(part)
        while sum(rows for _, _, rows, _ in self.sequences) > max(1, self.capacity_agent_steps // K):
            self.sequences.pop(0)
        while min(self.burn_in, self.sequences[0][1]):
            self.sequences.pop(0)

    @property
    def stored(self) -> int:
        return sum(agent_steps(run, slice(at, at + rows)) for run, at, rows, _ in self.sequences)

    def check(self, drawn: mf.JointSequenceTransitions) -> None:
        held = {first: (run, at, rows) for run, at, rows, first in self.sequences}
        rows = 0
        for index, row_id in enumerate(drawn.columns["row_id"].tolist()):
            one = {name: column[index] for name, column in drawn.columns.items()}
            self.check_one(one, *held[row_id])
            run, at, count = held[row_id]
            rows += agent_steps(run, slice(at, at + count))
        assert (drawn.count, drawn.rows) == (len(drawn.columns["row_id"]), rows)

    def check_one(self, one: dict[str, Any], run: dict[str, Any], at: int, rows: int) -> None:
        before = min(self.burn_in, at)
        for column, step in enumerate(range(-self.burn_in, self.length + 1)):
            is_valid = -before <= step <= rows
            assert one["valid"][column] == is_valid
            np.testing.assert_array_equal(one["state"][column], state(run, at + step) if is_valid else [0, 0, 0])
            for policy in SEATS:
                for stored, name in (("obs", "obs"), ("present", "valid")):
                    entry = one[f"{policy}:{name}"][column]
                    expected = seen(run, policy, stored, at + step) if is_valid else np.zeros_like(entry)
                    assert np.array_equal(entry, expected)
            if step >= 0:
                mask = one["right:action_mask"][step]
                expected = seen(run, "right", "action_mask", at + step) if is_valid else np.zeros_like(mask)
                np.testing.assert_array_equal(mask, expected)
        for policy in SEATS:
            np.testing.assert_array_equal(one[f"{policy}:memory"], run[f"{policy}:memory"][at - before])
        for step in range(self.length):
            assert one["trained"][step] == (step < rows)
            if step < rows:
                reward, discount, steps = window(run, at + step, self.n_step, at + rows)
                assert one["reward"][step] == pytest.approx(reward, rel=1e-5, abs=1e-5)
                assert one["discount"][step] == pytest.approx(discount, rel=1e-6)
                assert one["following"][step] == step + steps
                assert one["version"][step] == run["version"][at + step]
            for policy in SEATS:
                for name in ("action", "reward", "terminated"):
                    entry = one[f"{policy}:{name}"][step]
                    expected = run[f"{policy}:{name}"][at + step] if step < rows else np.zeros_like(entry)
                    assert np.array_equal(entry, expected)
