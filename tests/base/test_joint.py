"""Joint rows against a slow reference of dicts: every row once, presence, ends and the next row, whatever is played."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch
from marlflow.batches.joint import JointBatch, join

# Slot of each agent, by policy; slots interleave, and the policies see and do different things.
SLOTS = {"left": (1, 4), "right": (0, 2, 3)}
OBS = {"left": (2,), "right": (3, 2)}


@dataclass
class Segment:
    policy: str
    agent: int
    env: int
    episode: int
    times: list[int] = field(default_factory=list)
    ending: str = "cut"


@st.composite
def played(draw: st.DrawFn) -> list[Segment]:
    """Episodes in which agents join late, die, return, sit turns out, and whose segments are cut anywhere."""
    segments: list[Segment] = []
    for env_index, episode in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), unique=True, max_size=4)):
        for policy, slots in SLOTS.items():
            for agent in slots:
                times = sorted(draw(st.sets(st.integers(0, 7))))
                while times:
                    length = draw(st.integers(1, len(times)))
                    ending = draw(st.sampled_from(["cut", "terminated", "truncated"]))
                    segments.append(Segment(policy, agent, env_index, episode, times[:length], ending))
                    times = times[length:]
    return draw(st.permutations(segments))


def batch_of(policy: str, segments: list[Segment], masked: bool) -> Batch:
    """A batch whose every entry is a number of its own, not zero."""
    rows, count, shape = sum(len(one.times) for one in segments), len(segments), OBS[policy]

    def numbers(first: int, of: int, *shape: int) -> Array:
        return np.arange(first, first + of * int(np.prod(shape)), dtype=np.float32).reshape(of, *shape)

    columns = {
        "obs": numbers(1, rows, *shape),
        "action": np.arange(1, rows + 1),
        "reward": np.arange(1, rows + 1) + 0.5,
        "t_env": np.array([time for one in segments for time in one.times], np.int32),
    }
    table = {
        "length": np.array([len(one.times) for one in segments], np.int64),
        "terminated": np.array([one.ending == "terminated" for one in segments], bool),
        "truncated": np.array([one.ending == "truncated" for one in segments], bool),
        "bootstrap_obs": numbers(10_000, count, *shape),
        "env": np.array([one.env for one in segments], np.int64),
        "episode": np.array([one.episode for one in segments], np.int64),
        "agent": np.array([one.agent for one in segments], np.int64),
    }
    if masked:
        columns["action_mask"] = np.ones((rows, 4), bool)
        table["bootstrap_mask"] = np.ones((count, 4), bool)
    return Batch(columns, table)


def batches_of(segments: list[Segment], masked: bool = False) -> dict[str, Batch]:
    return {policy: batch_of(policy, [one for one in segments if one.policy == policy], masked) for policy in SLOTS}


Key = tuple[int, int, int]


def reference(batches: dict[str, Batch]) -> dict[Key, dict[tuple[str, int], tuple[int, int | None]]]:
    """For each joint row and seat, which row of the policy's batch stands there, and the segment that ends there."""
    found: dict[Key, dict[tuple[str, int], tuple[int, int | None]]] = defaultdict(dict)
    for policy, batch in batches.items():
        row = 0
        for segment, length in enumerate(batch.segments["length"].tolist()):
            env_index, episode, agent = (int(batch.segments[name][segment]) for name in ("env", "episode", "agent"))
            for place in range(length):
                key = (env_index, episode, int(batch.columns["t_env"][row]))
                found[key][policy, agent] = row, segment if place == length - 1 else None
                row += 1
    return found


def keys_of(joint: JointBatch) -> list[Key]:
    return list(zip(*(joint.keys[name].tolist() for name in ("env", "episode", "t_env")), strict=True))


def assert_holds(table: Array, at: tuple[int, int], entry: Array | None) -> None:
    np.testing.assert_array_equal(table[at], np.zeros_like(table[at]) if entry is None else entry)


@given(segments=played(), masked=st.booleans(), fixed=st.booleans())
def test_joint_rows_are_those_of_the_reference(segments: list[Segment], masked: bool, fixed: bool) -> None:
    batches = batches_of(segments, masked)
    joint, expected = join(batches, SLOTS if fixed else None), reference(batches)
    keys = keys_of(joint)
    assert keys == sorted(expected)
    assert joint.rows == sum(batch.rows for batch in batches.values())
    for policy, batch in batches.items():
        agents = joint.agents[joint.seats[policy]].tolist()
        assert agents == sorted(SLOTS[policy] if fixed else {one.agent for one in segments if one.policy == policy})
        assert joint.columns[policy].keys() == batch.columns.keys() - {"t_env"}
        assert ("bootstrap_mask" in joint.segment_ends[policy]) == masked
        ends = joint.segment_ends[policy]
        for number, key in enumerate(keys):
            for seat, agent in enumerate(agents):
                row, segment = expected[key].get((policy, agent), (None, None))
                assert joint.present[:, joint.seats[policy]][number, seat] == (row is not None)
                assert ends["ends"][number, seat] == (segment is not None)
                for name, column in joint.columns[policy].items():
                    assert_holds(column, (number, seat), None if row is None else batch.columns[name][row])
                for name in ends.keys() - {"ends"}:
                    assert_holds(ends[name], (number, seat), None if segment is None else batch.segments[name][segment])


@given(segments=played())
def test_the_next_row_is_the_next_of_the_same_copy_and_episode(segments: list[Segment]) -> None:
    joint = join(batches_of(segments))
    keys = keys_of(joint)
    for key, following in zip(keys, joint.next_row.tolist(), strict=True):
        later = [other for other in keys if other[:2] == key[:2] and other[2] > key[2]]
        assert (following == -1) == (not later)
        assert not later or keys[following] == min(later)


@given(segments=played(), data=st.data())
def test_the_order_in_which_segments_came_does_not_show(segments: list[Segment], data: st.DataObject) -> None:
    batches = batches_of(segments)
    shuffled = {}
    for policy, batch in batches.items():
        parts = [
            batch.only(np.arange(len(batch.segments["length"])) == one) for one in range(len(batch.segments["env"]))
        ]
        order = data.draw(st.permutations(parts))
        shuffled[policy] = Batch.concat(order) if order else batch
    one, other = join(batches), join(shuffled)
    assert keys_of(one) == keys_of(other)
    np.testing.assert_array_equal(one.present, other.present)
    for policy in SLOTS:
        for name, column in one.columns[policy].items():
            np.testing.assert_array_equal(column, other.columns[policy][name])
        for name, column in one.segment_ends[policy].items():
            np.testing.assert_array_equal(column, other.segment_ends[policy][name])


def test_three_turns_by_hand() -> None:
    """Agent 1 (left) decides at 0 and 2, agent 0 (right) at 1 and 2, where it ends; nobody else is there."""
    left, right = Segment("left", 1, 0, 5, [0, 2]), Segment("right", 0, 0, 5, [1, 2], "terminated")
    joint = join(batches_of([left, right]))
    assert joint.keys["t_env"].tolist() == [0, 1, 2]
    assert joint.agents.tolist() == [1, 0]
    assert joint.agents.dtype == np.int64
    assert joint.present.tolist() == [[True, False], [False, True], [True, True]]
    assert joint.next_row.tolist() == [1, 2, -1]
    assert joint.columns["left"]["reward"][:, 0].tolist() == [1.5, 0, 2.5]
    assert joint.columns["right"]["reward"][:, 0].tolist() == [0, 1.5, 2.5]
    assert joint.segment_ends["left"]["ends"][:, 0].tolist() == [False, False, True]
    assert joint.segment_ends["left"]["terminated"][:, 0].tolist() == [False, False, False]
    assert joint.segment_ends["right"]["terminated"][:, 0].tolist() == [False, False, True]


def test_an_agent_without_a_seat_and_a_row_that_came_twice_are_errors() -> None:
    batches = batches_of([Segment("left", 4, 0, 0, [0, 1])])
    with pytest.raises(ValueError, match=r"'left' has seats for agent slots \[1\], but \[4\] decided too"):
        join(batches, {"left": [1], "right": []})
    assert join(batches, {"left": [4, 1], "right": []}).agents.tolist() == [1, 4]
    twice = {**batches, "left": Batch.concat([batches["left"], batches["left"]])}
    with pytest.raises(ValueError, match="2 rows are an agent's second decision"):
        join(twice)
