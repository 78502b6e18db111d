"""A league read back from a checkpoint: of a run, of states by hand, and of what no league has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.league.sides import default_sides
from marlflow.runs.saved_league import saved_league, saved_run
from marlflow.runs.saved_policies import saved_policy
from marlflow.runs.saved_runs import newest
from tests.driver.kept_runs import driver
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.league.population import PAIR, add_games, matchmaker_of
from tests.league.saved import FLAT, played, state_of, write_checkpoint, write_league
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

AGENTS = ["player_0", "player_1"]


def test_members_are_restored_from_their_state_alone() -> None:
    fits = {"main": AGENTS, "left": ["player_0"], "nobody": [], "random": AGENTS}
    members = Members(default_sides(AGENTS), fits, live=["main", "left"])
    members.add("left", 3, 30, 20)
    members.incarnations["main"] = 2
    restored = Members.from_state(from_bytes(to_bytes(members.state())))
    assert restored.state() == members.state()
    assert restored.sides == members.sides
    assert restored.names == members.names == ["main", "left", "random", "left@1"]
    for role in (0, 1):
        assert restored.live_in(role) == members.live_in(role)
        assert restored.past_in(role) == members.past_in(role)
        assert restored.fixed_in(role) == members.fixed_in(role)


def test_a_league_is_as_it_was_saved(tmp_path: Path) -> None:
    matches = Payoffs(PAIR)
    add_games(matches, "main@1", "main@2", wins=1, losses=3)
    write_league(tmp_path, matches)
    league, saved = saved_league(tmp_path), played()
    assert league.members.state() == saved.members.state()
    assert league.train.cells == saved.payoffs.cells
    assert league.train.pairs == saved.payoffs.pairs
    assert league.matches.cells == matches.cells
    assert league.payoffs is league.matches
    assert league.ratings.state() == saved.ratings.state()
    assert (league.games, league.epoch) == (360, 2)
    assert league.versions() == {"main": 30}
    assert league.algorithms == {"main": "ppo", "random": "random"}


def test_without_matches_standings_are_of_training_games(tmp_path: Path) -> None:
    write_league(tmp_path)
    league = saved_league(tmp_path)
    assert league.payoffs is league.train
    write_checkpoint(tmp_path, {"matchmaker": state_of(played(), Payoffs(PAIR))}, env_steps=4_000)
    assert (league := saved_league(tmp_path)).payoffs is league.train


def test_parameters_are_those_of_the_member(tmp_path: Path) -> None:
    write_league(tmp_path)
    snapshot = saved_policy(saved_run(tmp_path), "main@2")
    np.testing.assert_array_equal(snapshot.flat, FLAT + 2)
    assert snapshot.description == {
        "member": "main@2",
        "policy": "main",
        "version": 20,
        "incarnation": 0,
        "env_steps": 2_000,
        "agent_steps": 1_800,
        "run": "0123456789abcdef",
        "algorithm": "ppo",
        "model": "MLP((8,))",
        "observation_space": "Box(0.0, 1.0, (3,), float32)",
        "action_space": "Discrete(2)",
        "roles": AGENTS,
        "scheduled": {"epsilon": 0.5},
        "stages": {},
    }
    live = saved_policy(saved_run(tmp_path), "main")
    np.testing.assert_array_equal(live.flat, FLAT, "as published, not as learned since")
    assert [live.description[name] for name in ("version", "env_steps", "agent_steps")] == [30, 3_000, 2_700]


def test_a_run_with_a_league_can_be_read(tmp_path: Path) -> None:
    members = Members(PAIR, {"main": AGENTS}, live=["main"])
    matchmaker = matchmaker_of(members, rules=mf.SnapshotRules(every_agent_steps=200))
    experiment = small_run(
        env=mf.Env(RockPaperScissors, {}, num_envs=4),
        policies={"main": mf.Policy(SMALL_PPO, SMALL)},
        mapping=matchmaker,
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40),
        checkpoint=mf.CheckpointConfig(every_env_steps=None),
    )
    mf.train(experiment, tmp_path)
    league, checkpoint = saved_league(tmp_path), newest(tmp_path)
    assert league.members.state() == driver(checkpoint)["dealer"]["matchmaker"]["members"]
    snapshots = list(league.members.snapshots)
    assert len(snapshots) > 2
    assert {f"frozen.{name}" for name in snapshots} <= set(checkpoint.names)
    learner = from_bytes(checkpoint.read("learner.main"))
    assert league.versions() == {"main": learner["version"]}
    np.testing.assert_array_equal(saved_policy(saved_run(tmp_path), "main").flat, learner["published"])
    for name in snapshots:
        exported = saved_policy(saved_run(tmp_path), name)
        assert exported.flat.shape == learner["published"].shape
        assert exported.description["version"] == league.members.snapshots[name].version
        assert exported.description["policy"] == "main"
    first, last = (saved_policy(saved_run(tmp_path), name).flat for name in (snapshots[0], snapshots[-1]))
    assert not np.array_equal(first, last)


# -- what no league has ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dealer", "message"),
    [
        (None, "has no league: who plays whom was fixed; start a run with one: marlflow train"),
        ({"matchmaker": None}, "has no league: who plays whom was dealt by a matchmaker of another kind"),
        ({"matchmaker": {"rounds": 3}}, "has no league: who plays whom was dealt by a matchmaker of another kind"),
    ],
)
def test_a_run_without_a_league_says_how_to_start_one(dealer: Any, message: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, dealer)
    with pytest.raises(mf.ConfigInvalid) as raised:
        saved_league(tmp_path)
    assert message in str(raised.value)
    assert "league=pfsp" in str(raised.value)


def without_members(state: dict[str, Any]) -> None:
    state["members"] = {}


def of_an_unknown_member(state: dict[str, Any]) -> None:
    state["payoffs"]["cells"]["profiles"][0] = ["main", "stranger"]


def of_too_many_roles(state: dict[str, Any]) -> None:
    state["payoffs"]["cells"]["profiles"][0] = ["main", "main", "main"]


def of_no_role(state: dict[str, Any]) -> None:
    state["payoffs"]["pairs"]["keys"][0] = [7, "main", 0, "random"]


def without_numbers(state: dict[str, Any]) -> None:
    state["ratings"]["main"] = "strong"


@pytest.mark.parametrize(
    "spoil", [without_members, of_an_unknown_member, of_too_many_roles, of_no_role, without_numbers]
)
def test_a_malformed_league_names_the_checkpoint(spoil: Any, tmp_path: Path) -> None:
    state = state_of(played())
    spoil(state)
    path = write_checkpoint(tmp_path, {"matchmaker": state})
    with pytest.raises(mf.CheckpointUnusable) as raised:
        saved_league(tmp_path)
    assert str(path) in str(raised.value)
    assert "remove it, and the one before it is used" in str(raised.value)


@pytest.mark.parametrize(
    ("member", "error", "message"),
    [
        ("main@3", mf.ConfigInvalid, "has no member 'main@3'; did you mean 'main@2'?"),
        ("xyz", mf.ConfigInvalid, "has no member 'xyz'; its members are main, random, main@1, main@2"),
        ("random", mf.ConfigInvalid, "member 'random' never learned, so it has no parameters to export"),
    ],
)
def test_a_member_that_cannot_be_exported(member: str, error: Any, message: str, tmp_path: Path) -> None:
    write_league(tmp_path)
    with pytest.raises(error) as raised:
        saved_policy(saved_run(tmp_path), member)
    assert message in str(raised.value)


@pytest.mark.parametrize("flat", [FLAT.astype(np.float64), FLAT[None], "many", None])
def test_malformed_parameters_name_the_checkpoint(flat: Any, tmp_path: Path) -> None:
    tree = {"policy": "main", "version": 10, "scheduled": {}, "flat": flat}
    path = write_checkpoint(tmp_path, {"matchmaker": state_of(played())}, files={"frozen.main@1": to_bytes(tree)})
    with pytest.raises(mf.CheckpointUnusable, match="parameters are no float32 vector") as raised:
        saved_policy(saved_run(tmp_path), "main@1")
    assert str(path) in str(raised.value)


def test_a_live_policy_of_a_shared_learner_needs_the_sizes_of_all_of_them(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"matchmaker": state_of(played())}, learners={"both": ["main", "other"]})
    league = saved_league(tmp_path)
    with pytest.raises(mf.CheckpointUnusable, match="published_sizes"):
        saved_policy(saved_run(tmp_path), "main")
    assert len(saved_policy(saved_run(tmp_path), "main@2").flat) == len(FLAT)
    assert league.versions() == {"main": 30}


def test_a_snapshot_that_the_run_has_forgotten(tmp_path: Path) -> None:
    matchmaker = played()
    matchmaker.members.add("main", version=25, env_steps=2_500, agent_steps=2_400)
    write_checkpoint(tmp_path, {"matchmaker": state_of(matchmaker)})
    with pytest.raises(mf.CheckpointUnusable, match="does not have the parameters of main@3"):
        saved_policy(saved_run(tmp_path), "main@3")
