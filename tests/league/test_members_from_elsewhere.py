"""Runs with members of another run: they are dealt, leave no rows, stay as they are, and survive their source."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Discrete

import marlflow as mf
from marlflow.algorithms.from_run import Imported
from marlflow.checks.validation import ready
from marlflow.config.imported_policies import load_policy
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.league.sides import default_sides
from marlflow.league.standings import standings
from marlflow.runs.saved_league import saved_league, saved_run
from marlflow.runs.saved_policies import from_export, saved_policy
from marlflow.runs.saved_runs import newest
from marlflow.runtime.sampling_worker import alike
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import Seen
from tests.league.population import agree, frequencies
from tests.league.runs import LEAGUES, league_run

SOURCE = league_run(LEAGUES["pfsp"], 300)
HALF, WHOLE = 240, 480


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "rps"
    mf.train(SOURCE, folder)
    return folder


def with_veteran(source: Path, env_steps: int) -> mf.Experiment:
    members = {"veteran": {"from": str(source), "member": "main@2"}, "dice": {"policy": "random"}}
    # It acts in one call with the other one.
    members["novice"] = {"from": str(source), "member": "main@1"}
    league = replace(LEAGUES["pfsp"], members=members, matches=mf.MatchRules(every_env_steps=200, games=12))
    return league_run(league, env_steps)


def test_a_run_goes_on_as_it_would_have_though_the_source_is_gone(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "source")
    gone = partial(shutil.rmtree, tmp_path / "source")
    resumed = resumes_exactly(with_veteran(tmp_path / "source", WHOLE), tmp_path, HALF, gone)
    files = [
        {name: tree for name, tree in trees.items() if "member." in name} for trees in (resumed.half, resumed.trees)
    ]
    assert files[0] == files[1], "the same bytes, in each checkpoint"
    assert files[0].keys() == {"member.veteran", "member.novice"}


def test_it_never_changes_leaves_no_rows_and_is_rated(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    metrics = mf.train(with_veteran(source, WHOLE), tmp_path).metrics
    expected = load_policy(source, "main@2")
    copy = from_export(bytes(newest(tmp_path).read("member.veteran")), "")
    np.testing.assert_array_equal(copy.flat, expected.flat)
    assert saved_policy(saved_run(tmp_path), "veteran").sha256 == expected.sha256
    seated = Counter(name for episode in seen.episodes for name in episode.matchup.values())
    assert seated["veteran"] > 3
    assert seated["dice"] > 3
    assert all("main" in episode.matchup.values() for episode in seen.episodes)
    rows_of_main = sum(10 * list(episode.matchup.values()).count("main") for episode in seen.episodes)
    assert metrics["policies"]["main"]["agent_steps_sampled"] >= rows_of_main
    assert saved_run(tmp_path).notes.identity["learners"].keys() == {"main"}
    league = saved_league(tmp_path)
    rows = {row.member: row for row in standings(league.members, league.payoffs, league.ratings).rows}
    for name in ("veteran", "dice"):
        assert rows[name].games > 0
        assert rows[name].rating is not None


def test_those_of_one_network_act_together(source: Path) -> None:
    spec = ready(with_veteran(source, WHOLE)).spec
    assert [list(cohort) for cohort in alike(spec.policies.values())] == [["veteran", "novice"]]
    novice = spec.policies["novice"]
    assert isinstance(novice.algorithm, Imported)
    assert isinstance(novice.algorithm.algorithm, mf.PPO)
    for other in (
        replace(novice, model=mf.MLP((7,))),
        replace(novice, spaces=replace(novice.spaces, action=Discrete(4))),
        replace(novice, algorithm=replace(novice.algorithm, algorithm=replace(novice.algorithm.algorithm, epochs=9))),
    ):
        cohorts = alike([spec.policies["veteran"], other])
        assert [list(cohort) for cohort in cohorts] == [["veteran"], ["novice"]]


def test_another_source_than_that_of_the_run_is_refused(source: Path, tmp_path: Path) -> None:
    mf.train(with_veteran(source, 100), tmp_path)
    experiment = with_veteran(source, 200)
    assert experiment.league is not None
    members = {**experiment.league.members, "veteran": {"from": str(source), "member": "main@1"}}
    with pytest.raises(
        mf.CheckpointUnusable, match=r"league.members.veteran.member was 'main@2' .* and is 'main@1' now"
    ):
        mf.resume(replace(experiment, league=replace(experiment.league, members=members)), tmp_path)
    with pytest.raises(mf.CheckpointUnusable, match=r"it has league.members.veteran, which this run has not"):
        mf.resume(league_run(LEAGUES["pfsp"], 200), tmp_path)


# -- who is dealt ---------------------------------------------------------------------------------------------------

AGENTS = ["player_0", "player_1"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (mf.LatestPast(live=0.4, window=2), {"main": 0.4, "veteran": 0.2, "main@2": 0.2, "main@3": 0.2}),
        (mf.DeltaUniform(delta=0.67), {"veteran": 1 / 2, "main@3": 1 / 2}),
        (mf.Fictitious(), {"veteran": 1 / 4, "main@1": 1 / 4, "main@2": 1 / 4, "main@3": 1 / 4}),
        (mf.PFSP(past=0.8), {"main": 0.2, "veteran": 0.2, "main@1": 0.2, "main@2": 0.2, "main@3": 0.2}),
    ],
)
def test_modes_deal_it_like_a_snapshot(mode: mf.LeagueMode, expected: dict[str, float]) -> None:
    sides = default_sides(AGENTS)
    fits = dict.fromkeys(("main", "veteran", "script"), AGENTS)
    members = Members(sides, fits, live=["main"], added=["veteran"])
    for version in (1, 2, 3):
        members.add("main", version, 0, 0)
    view = mf.LeagueView(members, Payoffs(sides, ["main"]))
    assert agree(frequencies(lambda generator: mode.rival(view, "main", 1, generator)), expected)


def test_before_any_snapshot_it_is_dealt_alone() -> None:
    sides = default_sides(AGENTS)
    members = Members(sides, {"main": AGENTS, "veteran": AGENTS}, live=["main"], added=["veteran"])
    view = mf.LeagueView(members, Payoffs(sides, ["main"]))
    for mode in (mf.Fictitious(), mf.DeltaUniform(), mf.PFSP(past=1.0), mf.LatestPast(live=0.0)):
        assert mode.rival(view, "main", 0, np.random.default_rng(0)) == "veteran"
