"""The league's branch of the drawn plan, held against what a run does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.checks.commands import check
from marlflow.checks.validation import ready
from marlflow.config.plans import drawn_plan, league_work, with_league
from marlflow.driver.train import train_checked
from marlflow.flow import WorkBetweenRounds
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.matches import Matches
from marlflow.matchmaking.dealer import DealtWorkers
from marlflow.sampling.population import Population
from tests.league.runs import league_run

RULES = mf.MatchRules(every_env_steps=150, games=6)
RULED = mf.League(mf.Fictitious(), snapshots=mf.SnapshotRules(every_agent_steps=200), matches=RULES)
META = mf.League(
    mf.PSRO(solver="uniform", agent_steps=300, games=3, oracle_from="latest"),
    snapshots=mf.SnapshotRules(every_agent_steps=None),
)


def steps_of_a_run(league: mf.League, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Any]:
    """The steps of a run's league in order, each round's collect among them, and the last report."""
    steps: list[str] = []

    def record(kind: type, method: str, name: str, is_work: Callable[..., bool] = lambda *arguments: True) -> None:
        whole = getattr(kind, method)

        def recorded(*arguments: Any) -> Any:
            if is_work(*arguments):
                steps.append(name)
            return whole(*arguments)

        monkeypatch.setattr(kind, method, recorded)

    record(LeagueMatchmaker, "observe", "Score")
    record(LeagueMatchmaker, "change_population", "Decide")
    record(Population, "apply", "Apply")
    record(Matches, "request", "Referee", lambda matches, counts: bool(counts))
    record(Matches, "observe", "Score")
    record(mf.PSRO, "solve", "Solve", lambda mode, members, payoffs: mode._is_out_of_date(members))
    record(DealtWorkers, "collect", "round")
    experiment = league_run(league, 600)
    # Checking deals games on trial.
    checked = check(experiment)
    steps.clear()
    return steps, train_checked(checked, run_dir).metrics


def work_of(league: mf.League) -> WorkBetweenRounds:
    return league_work(league, ready(league_run(league, 600)))


@pytest.mark.parametrize("league", [RULED, META], ids=["rules", "meta_game"])
def test_a_run_does_what_is_drawn(league: mf.League, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, report = steps_of_a_run(league, tmp_path, monkeypatch)
    rows = {name: row for name, row, _ in work_of(league).rows}
    assert list(rows) == ["results", "matches"]
    results, matches = rows["results"], rows["matches"]
    # From one round to the next: results, if episodes have ended, and then matches, if some are due.
    allowed = [(*scored, *results[1:], *played) for scored in ((), results[:1]) for played in ((), matches)]
    between = [tuple(words.split()) for words in " ".join(steps).split("round")][:-1]
    assert len(between) > 10
    assert set(between) <= set(allowed)
    assert any(one[-len(matches) :] == matches for one in between)
    assert report["league"]["matches"] > 0
    drawn = (tmp_path / "plan.mmd").read_text(encoding="utf-8")
    for name in results + matches:
        assert f'["{name}"]' in drawn
    assert work_of(league).title in drawn


def test_the_pace_of_matches_is_the_drawn_one(tmp_path: Path) -> None:
    report = mf.train(league_run(RULED, 900), tmp_path).metrics
    assert work_of(RULED).rows[1][2] == "at most 6 games for every 150 env steps"
    assert 6 * 3 <= report["league"]["matches"] <= 6 * 900 // 150
    assert work_of(META).rows[1][2] == "3 games of each new profile, for which rounds wait"


def test_a_league_without_matches_draws_none_and_a_run_without_a_league_nothing() -> None:
    without = replace(RULED, matches=mf.MatchRules(every_env_steps=None))
    assert [name for name, _, _ in work_of(without).rows] == ["results"]
    checked = ready(replace(league_run(RULED, 600), league=None, mapping=[mf.Rule("*", "main")]))
    plan = drawn_plan(checked.experiment, checked.spec)
    assert with_league(plan, checked) is plan


def test_the_branch_is_drawn_as_a_tree() -> None:
    checked = ready(league_run(RULED, 600))
    plan = with_league(drawn_plan(checked.experiment, checked.spec), checked)
    assert str(plan).splitlines()[-3:] == [
        "└── league: fictitious over main (ppo); sides player_0 | player_1",
        "    ├── results: Score → Decide → Apply   after every round",
        "    └── matches: Referee → Score   at most 6 games for every 150 env steps",
    ]
