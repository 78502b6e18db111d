"""Joint segments against a slow reference that walks through episodes env step by env step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.batches.batch import Batch
from marlflow.batches.joint_segments import JointSegments, TeamReward, joint_segments
from tests.base.joint_episodes import SLOTS, Segment, batch_of, batches_of, played

_SEATED = {"obs": "bootstrap_obs", "action_mask": "bootstrap_mask"}


@dataclass
class Decision:
    """One row of one agent."""

    batch: Batch
    row: int
    segment: int
    is_last: bool
    is_first: bool
    follows: bool = False
    """Whether it is not the last decision of a run, but the first after it."""

    @property
    def ending(self) -> str:
        ends = [name for name in ("terminated", "truncated") if self.batch.segments[name][self.segment]]
        return ends[0] if ends else "cut"

    def after(self, name: str, bootstrap: str) -> Any:
        """What the agent sees after this decision; of one that follows a run, what it sees then."""
        if self.follows:
            return self.batch.columns[name][self.row]
        return self.batch.segments[bootstrap][self.segment] if self.is_last else self.batch.columns[name][self.row + 1]


Seat = tuple[str, int]
Rows = list[dict[Seat, Decision]]


@dataclass
class Run:
    rows: Rows = field(default_factory=list)
    place: tuple[int, int] = (0, 0)
    times: list[int] = field(default_factory=list)
    following: dict[Seat, Decision] = field(default_factory=dict)
    left_early: int = 0


def reference(batches: dict[str, Batch]) -> list[Run]:
    decisions: dict[tuple[int, int, int], dict[Seat, Decision]] = {}
    for policy, batch in batches.items():
        row = 0
        for segment, length in enumerate(batch.segments["length"].tolist()):
            place = int(batch.segments["env"][segment]), int(batch.segments["episode"][segment])
            seat = policy, SLOTS[policy].index(int(batch.segments["agent"][segment]))
            for number in range(length):
                key = (*place, int(batch.columns["t_env"][row]))
                decision = Decision(batch, row, segment, number == length - 1, number == 0)
                decisions.setdefault(key, {})[seat] = decision
                row += 1
    runs: list[Run] = []
    latest: dict[Seat, Decision] = {}
    for env, episode, time in sorted(decisions):
        here = decisions[env, episode, time]
        is_new_episode = not runs or runs[-1].place != (env, episode)
        if is_new_episode:
            latest = {}
        ended = [seat for seat, before in latest.items() if before.is_last and before.ending != "cut"]
        if is_new_episode or any(seat in here for seat in ended):
            runs.append(Run(place=(env, episode)))
        runs[-1].rows.append(here)
        runs[-1].times.append(time)
        latest |= here
    for number, run in enumerate(runs):
        next_run = runs[number + 1] if number + 1 < len(runs) else None
        end(run, next_run.rows[0] if next_run is not None and next_run.place == run.place else None)
    return runs


def end(run: Run, next_row: dict[Seat, Decision] | None) -> None:
    last = len(run.rows) - 1
    for number, row in enumerate(run.rows):
        for seat, decision in row.items():
            is_latest = not any(seat in later for later in run.rows[number + 1 :])
            if decision.is_last and decision.ending == "truncated" and number < last:
                run.left_early += 1
            elif is_latest and not (decision.is_last and decision.ending == "terminated"):
                run.following[seat] = decision
    if next_row is not None:
        cut_by_time = {seat: one for seat, one in run.following.items() if one.is_last and one.ending == "truncated"}
        run.following = cut_by_time | {seat: replace(one, follows=True) for seat, one in next_row.items()}


def is_over(run: Run) -> tuple[bool, bool]:
    goes_on = [one.follows or not (one.is_last and one.ending == "truncated") for one in run.following.values()]
    return not goes_on, bool(goes_on) and not any(goes_on)


def assert_is(actual: Any, expected: Any) -> None:
    """Equal, in every bit; None stands for zeros."""
    np.testing.assert_array_equal(actual, np.zeros_like(actual) if expected is None else expected)


def first(row: dict[Seat, Decision]) -> Decision | None:
    return next((row[seat] for seat in seats() if seat in row), None)


def seats() -> list[Seat]:
    return [(policy, seat) for policy, slots in SLOTS.items() for seat in range(len(slots))]


def assert_row(made: JointSegments, number: int, row: dict[Seat, Decision]) -> None:
    columns = made.columns
    for policy, seat in seats():
        decision = row.get((policy, seat))
        at = number, seat
        assert columns[f"{policy}:present"][at] == (decision is not None)
        died = decision is not None and decision.is_last and decision.ending == "terminated"
        assert columns[f"{policy}:terminated"][at] == died
        for name in ("obs", "action", "reward", "memory", "action_mask"):
            assert (f"{policy}:{name}" in columns) == (name != "action_mask" or policy == "right")
            if f"{policy}:{name}" in columns:
                value = None if decision is None else decision.batch.columns[name][decision.row]
                assert_is(columns[f"{policy}:{name}"][at], value)
    first_one = first(row)
    assert first_one is not None
    for name in ("state", "version"):
        assert_is(columns[name][number], first_one.batch.columns[name][first_one.row])


def assert_run(made: JointSegments, number: int, run: Run) -> None:
    segments = made.segments
    assert segments["length"][number] == len(run.rows)
    assert (segments["env"][number], segments["episode"][number]) == run.place
    assert (segments["terminated"][number], segments["truncated"][number]) == is_over(run)
    assert segments["seats_left_early"][number] == run.left_early
    begun = [one for row in run.rows for one in row.values() if one.is_first]
    assert segments["carried"][number] == any(one.batch.segments["carried"][one.segment] for one in begun)
    for policy, seat in seats():
        following, at = run.following.get((policy, seat)), (number, seat)
        assert segments[f"bootstrap_{policy}:present"][at] == (following is not None)
        assert_is(segments[f"bootstrap_{policy}:obs"][at], following and following.after("obs", "bootstrap_obs"))
        if policy == "right":
            mask = following and following.after("action_mask", "bootstrap_mask")
            assert_is(segments[f"bootstrap_{policy}:mask"][at], mask)
    following = first(run.following)
    assert_is(segments["bootstrap_state"][number], following and following.after("state", "bootstrap_state"))


@given(segments=played(), team_reward=st.sampled_from(["mean", "sum"]), seed=st.integers(0, 9))
def test_segments_are_those_of_the_reference(segments: list[Segment], team_reward: TeamReward, seed: int) -> None:
    batches = batches_of(segments, seed)
    if not segments:
        return
    made, runs = joint_segments(batches, SLOTS, team_reward), reference(batches)
    rows = [row for run in runs for row in run.rows]
    assert (made.count, made.rows) == (len(rows), sum(len(one.times) for one in segments))
    assert made.columns["t_env"].tolist() == [time for run in runs for time in run.times]
    assert len(made.segments["length"]) == len(runs)
    for number, row in enumerate(rows):
        assert_row(made, number, row)
        rewards = [float(one.batch.columns["reward"][one.row]) for one in row.values()]
        expected = math.fsum(rewards) / (len(rewards) if team_reward == "mean" else 1)
        assert made.columns["reward"][number] == pytest.approx(expected, abs=1e-12)
    for number, run in enumerate(runs):
        assert_run(made, number, run)


@given(segments=played())
def test_no_reward_is_lost_or_made(segments: list[Segment]) -> None:
    batches = batches_of(segments)
    if segments:
        issued = math.fsum(reward for batch in batches.values() for reward in batch.columns["reward"].tolist())
        made = joint_segments(batches, SLOTS, "sum")
        assert math.fsum(made.columns["reward"].tolist()) == pytest.approx(issued, abs=1e-9)


@given(segments=played(idle=False), data=st.data())
def test_rounds_that_are_joined_together_are_joined_as_one(segments: list[Segment], data: st.DataObject) -> None:
    """Cuts between rounds leave no trace in rows, nor in runs that no cut ends."""
    whole: list[Segment] = []
    for one in sorted(segments, key=lambda one: (one.policy, one.agent, one.env, one.episode, one.times)):
        before = whole[-1] if whole else None
        place = (one.policy, one.agent, one.env, one.episode)
        if before and before.ending == "cut" and (before.policy, before.agent, before.env, before.episode) == place:
            whole[-1] = Segment(*place, [*before.times, *one.times], one.ending, before.carried)
        else:
            whole.append(one)
    if not segments:
        return
    cut, uncut = (joint_segments(batches_of(each), SLOTS) for each in (segments, whole))
    for name in ("length", "terminated", "truncated", "env", "episode", "seats_left_early"):
        np.testing.assert_array_equal(cut.segments[name], uncut.segments[name])
    for policy in SLOTS:
        for name in (f"bootstrap_{policy}:present",):
            np.testing.assert_array_equal(cut.segments[name], uncut.segments[name])
        for name in (f"{policy}:present", f"{policy}:terminated"):
            np.testing.assert_array_equal(cut.columns[name], uncut.columns[name])


def segment(agent: int, times: list[int], ending: str = "cut") -> Segment:
    policy = next(policy for policy, slots in SLOTS.items() if agent in slots)
    return Segment(policy, agent, 0, 0, times, ending)


def ends_of(*segments: Segment) -> list[tuple[int, bool, bool, list[int]]]:
    """Of each run its length, terminated, truncated, and the slots whose values count after it."""
    made = joint_segments(batches_of(list(segments)), SLOTS).segments
    present = np.concatenate([made[f"bootstrap_{policy}:present"] for policy in SLOTS], axis=1)
    slots = np.array([slot for of_policy in SLOTS.values() for slot in of_policy])
    return [
        (int(made["length"][n]), bool(made["terminated"][n]), bool(made["truncated"][n]), sorted(slots[here].tolist()))
        for n, here in enumerate(present)
    ]


def test_how_runs_end_by_hand() -> None:
    # All die at once; the last member dies after the others.
    assert ends_of(segment(1, [0], "terminated"), segment(0, [0], "terminated")) == [(1, True, False, [])]
    assert ends_of(segment(1, [0], "terminated"), segment(0, [0, 1], "terminated")) == [(2, True, False, [])]
    # One truncated agent keeps the team's value from being 0; one that was truncated earlier does not count.
    assert ends_of(segment(1, [0], "truncated"), segment(0, [0], "terminated")) == [(1, False, True, [1])]
    assert ends_of(segment(1, [0], "truncated"), segment(0, [0, 1], "terminated")) == [(2, True, False, [])]
    # A death on the last row before a cut: the others go on.
    assert ends_of(segment(1, [0, 1], "terminated"), segment(0, [0, 1])) == [(2, False, False, [0])]
    # An agent that returns begins a run; the one before is bootstrapped from what all who decide then see.
    assert ends_of(segment(1, [0], "terminated"), segment(1, [2, 3]), segment(0, [0, 1, 2, 3], "truncated")) == [
        (2, False, False, [0, 1]),
        (2, False, False, [0, 1]),
    ]
    # One that is truncated right before another returns counts by its own final observation.
    lives = segment(1, [0], "terminated"), segment(1, [2, 3]), segment(2, [0, 1], "truncated"), segment(0, [0, 1, 2, 3])
    assert ends_of(*lives) == [(2, False, False, [0, 1, 2]), (2, False, False, [0, 1])]
    # All died, or were truncated, and one returns: the team's episode goes on.
    for ending in ("terminated", "truncated"):
        assert ends_of(segment(1, [0], ending), segment(0, [0], "terminated"), segment(1, [5, 6])) == [
            (1, False, False, [1]),
            (2, False, False, [1]),
        ]
    # A late joiner begins nothing anew.
    assert ends_of(segment(1, [0, 1, 2]), segment(4, [1, 2]))[0][0] == 3


def test_a_seat_that_is_always_empty_changes_no_other_entry() -> None:
    batches = batches_of([segment(0, [0, 1, 2]), segment(2, [0, 1], "terminated"), segment(1, [1, 2])])
    made = joint_segments(batches, SLOTS)
    wider = joint_segments(batches, {"left": (1, 4, 7), "right": (0, 2, 3)})
    for narrow, wide in ((made.columns, wider.columns), (made.segments, wider.segments)):
        assert narrow.keys() == wide.keys()
        for name in narrow:
            of_left = "left:" in name
            np.testing.assert_array_equal(narrow[name], wide[name][:, :2] if of_left else wide[name])
            if of_left:
                assert not wide[name][:, 2:].any()


def test_a_policy_without_rows_has_empty_seats() -> None:
    one = [segment(1, [0, 1])]
    made = joint_segments({"left": batch_of("left", one), "right": batch_of("right", [])}, SLOTS)
    assert made.columns["right:obs"].shape == (2, 3, 3, 2)
    assert not made.columns["right:present"].any()
    assert not made.segments["bootstrap_right:present"].any()


def test_a_reward_that_is_no_number_stays_in_its_row() -> None:
    batches = batches_of([segment(0, [0, 1]), segment(1, [0, 1])])
    batches["left"].columns["reward"][1] = np.nan
    assert np.isnan(joint_segments(batches, SLOTS, "mean").columns["reward"]).tolist() == [False, True]


def test_an_agent_without_a_seat_and_a_row_that_came_twice_are_errors() -> None:
    batches = batches_of([segment(4, [0, 1])])
    with pytest.raises(ValueError, match=r"'left' has seats for agent slots \[1\], but \[4\] decided too"):
        joint_segments(batches, {"left": (1,), "right": SLOTS["right"]})
    twice = {**batches, "left": Batch.concat([batches["left"], batches["left"]])}
    with pytest.raises(ValueError, match="2 rows are an agent's second decision"):
        joint_segments(twice, SLOTS)


@given(segments=played())
def test_one_policy_of_two_agents_is_two_policies_of_one_side_by_side(segments: list[Segment]) -> None:
    left = [one for one in segments if one.policy == "left"]
    if not {1, 4} <= {one.agent for one in left}:
        return
    whole = batch_of("left", left)
    parts = {name: whole.only(whole.segments["agent"] == slot) for name, slot in (("a", 1), ("b", 4))}
    together = joint_segments({"left": whole}, {"left": (1, 4)})
    apart = joint_segments(parts, {"a": (1,), "b": (4,)})
    for one, other in ((together.columns, apart.columns), (together.segments, apart.segments)):
        for name, column in one.items():
            if "left:" in name:
                sides = [other[name.replace("left:", f"{side}:")] for side in parts]
                np.testing.assert_array_equal(column, np.concatenate(sides, axis=1))
            else:
                np.testing.assert_array_equal(column, other[name])


def test_a_team_of_forty() -> None:
    slots = tuple(range(40))
    segments = [Segment("left", slot, 0, 0, list(range(slot % 3, 5 + slot % 2))) for slot in slots]
    made = joint_segments({"left": batch_of("left", segments)}, {"left": slots}, "sum")
    assert made.columns["left:present"].sum(axis=0).tolist() == [len(one.times) for one in segments]
    assert made.count == 6
