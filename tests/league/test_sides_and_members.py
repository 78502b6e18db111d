"""Sides, roles, and who can be seated in each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.league.members import Members
from marlflow.league.sides import Sides, default_sides, sides_of

TAG = ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
TWO_ON_TWO = {"red": [["red_0"], ["red_1"]], "blue": [["blue_*"]]}
COLORS = ["red_0", "red_1", "blue_0", "blue_1"]


def roles(sides: Sides) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(role.name, role.side, role.agents) for role in sides.roles]


def test_agents_of_one_group_are_a_side_each() -> None:
    sides, problems = sides_of(None, ["player_0", "player_1", "player_2"])
    assert roles(sides) == [(f"player_{i}", i, (f"player_{i}",)) for i in range(3)]
    assert problems == []


def test_groups_are_a_side_each() -> None:
    assert roles(default_sides(TAG)) == [("adversary", 0, tuple(TAG[:3])), ("agent", 1, ("agent_0",))]


def test_a_side_may_have_several_roles() -> None:
    sides, problems = sides_of(TWO_ON_TWO, COLORS)
    assert problems == []
    assert roles(sides) == [("red_0", 0, ("red_0",)), ("red_1", 0, ("red_1",)), ("blue", 1, ("blue_0", "blue_1"))]
    assert [sides.of_side(side) for side in (0, 1)] == [(0, 1), (2,)]


def test_a_profile_and_its_matchup_say_the_same() -> None:
    sides, _ = sides_of(TWO_ON_TWO, COLORS)
    matchup = {"red_0": "main", "red_1": "main@1", "blue_0": "other", "blue_1": "other"}
    assert sides.matchup(["main", "main@1", "other"]) == matchup
    assert sides.profile(matchup) == ("main", "main@1", "other")


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ({"red": [["red_*"]]}, "league.sides needs at least two sides, since rivals play on different sides"),
        ({"red": [["red_*"]], "blue": [["bleu_*"]]}, "league.sides.blue: 'bleu_*' matches no agent; the agents are "),
        ({"red": [["red_*"]], "blue": [["blue_0"]]}, "league.sides: agent 'blue_1' is in no role; put it in one role"),
        ({"red": [["red_*"]], "blue": [["blue_*", "red_0"]]}, "agent 'red_0' is in red and in blue; put it in one"),
        ({"red": [["red_*"]], "blue": [["blue_*"], []]}, "league.sides.blue: a role has no agents; name at least one"),
        ({"red": [["red_*"]], "blue": [["blue_*"]], "green": []}, "league.sides.green has no roles; list the agents"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(layout: dict[str, list[list[str]]], problem: str) -> None:
    _, problems = sides_of(layout, COLORS)
    assert any(problem in text for text in problems)


def test_one_agent_alone_has_no_rival() -> None:
    assert sides_of(None, ["agent_0"])[1] == [
        "league.sides needs at least two sides, since rivals play on different sides"
    ]


def tag_members() -> Members:
    fits = {"hunter": TAG[:3], "prey": ["agent_0"], "any": TAG, "random": TAG}
    return Members(default_sides(TAG), fits, live=["hunter", "prey"])


def test_members_are_listed_by_the_roles_that_they_can_play() -> None:
    members = tag_members()
    members.add("hunter", version=3, env_steps=10, agent_steps=30)
    members.add("prey", version=2, env_steps=10, agent_steps=10)
    members.add("hunter", version=5, env_steps=20, agent_steps=60)
    assert [members.live_in(role) for role in (0, 1)] == [["hunter"], ["prey"]]
    assert [members.past_in(role) for role in (0, 1)] == [["hunter@1", "hunter@2"], ["prey@1"]]
    assert [members.fixed_in(role) for role in (0, 1)] == [["any", "random"]] * 2
    assert [members.plays("hunter@2", role) for role in (0, 1)] == [True, False]
    assert [members.policy_of(name) for name in ("hunter", "hunter@2", "random")] == ["hunter", "hunter", "random"]
    assert [members.is_live(name) for name in ("hunter", "hunter@2", "random")] == [True, False, False]


def test_a_policy_that_fits_a_part_of_a_role_cannot_play_it() -> None:
    members = Members(default_sides(TAG), {"hunter": TAG[:2], "prey": ["agent_0"]}, live=["hunter", "prey"])
    assert members.live_in(0) == []


def test_state_through_bytes_restores_everything() -> None:
    members, restored = tag_members(), tag_members()
    members.add("hunter", version=3, env_steps=10, agent_steps=30)
    members.incarnations["hunter"] = 1
    members.add("hunter", version=9, env_steps=20, agent_steps=60)
    restored.add("prey", version=1, env_steps=1, agent_steps=1)
    restored.load_state(from_bytes(to_bytes(members.state())))
    assert (restored.snapshots, restored.incarnations) == (members.snapshots, members.incarnations)
    assert [restored.past_in(role) for role in (0, 1)] == [["hunter@1", "hunter@2"], []]
    assert restored.add("hunter", 10, 30, 90) == members.add("hunter", 10, 30, 90)
    assert restored.snapshots["hunter@3"].incarnation == 1


ROLE_OF = {"hunter": 0, "chaser": 0, "prey": 1}


def pool_of(newest: int | None, best: int | None, count: int = 6) -> Members:
    fits = {"hunter": TAG[:3], "chaser": TAG[:3], "prey": ["agent_0"]}
    members = Members(default_sides(TAG), fits, list(ROLE_OF), newest, best)
    for number in range(count):
        for policy in ROLE_OF:
            members.add(policy, number, number, number)
    return members


@given(
    st.one_of(st.none(), st.integers(1, 7)),
    st.one_of(st.none(), st.integers(1, 7)),
    st.lists(st.integers(0, 3), min_size=18, max_size=18),
)
def test_the_newest_and_the_best_of_each_policy_are_dealt(
    newest: int | None, best: int | None, ratings: list[int]
) -> None:
    members = pool_of(newest, best)
    rating = dict(zip(members.snapshots, map(float, ratings), strict=True))
    members.choose_dealt(rating.__getitem__)
    expected: dict[str, int] = {}
    for policy, role in ROLE_OF.items():
        names = [f"{policy}@{number}" for number in range(1, 7)]
        beaten_by = {
            name: sum((rating[other], place) > (rating[name], names.index(name)) for place, other in enumerate(names))
            for name in names
        }
        for place, name in enumerate(names):
            if (
                (newest is None and best is None)
                or (newest is not None and place >= 6 - newest)
                or (best is not None and beaten_by[name] < best)
            ):
                expected[name] = role
    for role in (0, 1):
        assert members.past_in(role) == [name for name in members.snapshots if expected.get(name) == role]
    restored = pool_of(newest, best, count=1)
    restored.load_state(from_bytes(to_bytes(members.state())))
    assert [restored.past_in(role) for role in (0, 1)] == [members.past_in(role) for role in (0, 1)]
