"""Runs of leagues: games, counts and reports; a resumed run continues as without the interruption."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.observe.report import LeaguePlayerMetrics, LeagueReport
from marlflow.runs.saved_runs import newest
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import Seen, reports
from tests.league.runs import LEAGUES, MAIN, OFTEN, league_run
from tests.runtime.small_runs import SMALL, SMALL_DQN

HALF, WHOLE = 432, 864


def league_of(run_dir: Path) -> Any:
    """The league's state in the newest checkpoint."""
    return kept(run_dir)["driver"]["dealer"]["matchmaker"]


def frozen_files(run_dir: Path) -> set[str]:
    return {name.removeprefix("frozen.") for name in newest(run_dir).names if name.startswith("frozen.")}


def test_a_league_goes_on_as_it_would_have(tmp_path: Path) -> None:
    resumed = resumes_exactly(league_run(LEAGUES["pfsp"], WHOLE), tmp_path, HALF)
    before, snapshots = (
        trees["driver"]["dealer"]["matchmaker"]["members"]["snapshots"] for trees in (resumed.half, resumed.trees)
    )
    assert 1 < len(before) < len(snapshots), "snapshots were to be taken before and after"
    assert {f"{one['policy']}@{one['number']}" for one in snapshots} == frozen_files(resumed.whole)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("name", [pytest.param("latest_past", marks=pytest.mark.slow), "pfsp"])
def test_over_ray_it_goes_on_as_in_one_process(name: str, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    mf.train(league_run(LEAGUES[name], WHOLE), whole)
    mf.train(league_run(LEAGUES[name], HALF, "ray"), parts)
    league = mf.resume(league_run(LEAGUES[name], WHOLE, "ray"), parts).metrics["league"]
    assert_equal(without_times(league_of(whole)), without_times(league_of(parts)))
    # Each snapshot that was dealt to two workers was sent to both at most once a process, and there were two.
    (size,) = {from_bytes(newest(whole).read(f"frozen.{entry}"))["flat"].nbytes for entry in frozen_files(whole)}
    assert 0 < league["members_sent"] <= 4 * len(frozen_files(whole))
    assert league["bytes_sent"] == size * league["members_sent"]
    assert league["cache_hits"] > league["members_sent"]
    for entry in frozen_files(whole):
        one, other = (from_bytes(newest(run_dir).read(f"frozen.{entry}")) for run_dir in (whole, parts))
        np.testing.assert_allclose(one["flat"], other["flat"], rtol=1e-5, atol=1e-6)


def test_results_are_counted_as_they_were_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch)
    metrics = mf.train(league_run(LEAGUES["pfsp"], WHOLE), tmp_path).metrics
    league = metrics["league"]
    assert league["games"] == len(seen.episodes) == metrics["episodes"]
    assert (league["games_stale"], league["games_lost"]) == (0, 0)
    cells = league_of(tmp_path)["payoffs"]["cells"]
    played = Counter(tuple(episode.matchup.values()) for episode in seen.episodes)
    counted = dict(zip(map(tuple, cells["profiles"]), cells["counts"][:, 0].tolist(), strict=True))
    assert counted == played
    returns = {
        profile: np.mean([e.returns["player_0"] for e in seen.episodes if tuple(e.matchup.values()) == profile])
        for profile in counted
    }
    means = dict(zip(counted, cells["returns"][:, 0, 1].tolist(), strict=True))
    assert means == pytest.approx(returns)


def test_each_report_has_the_league(tmp_path: Path) -> None:
    mf.train(league_run(LEAGUES["pfsp"], WHOLE), tmp_path)
    first, *_, last = (report["league"] for report in reports(tmp_path))
    assert set(last) == LeagueReport.__annotations__.keys()
    main = last["players"]["main"]
    assert set(main) == LeaguePlayerMetrics.__annotations__.keys()
    assert last["members"] == 1 + main["snapshots"]
    assert last["epoch"] == main["snapshots"] > first["epoch"]
    assert last["games"] == main["games"] > first["games"]
    assert 0 < main["opponents_distinct"] <= main["snapshots"]
    assert 0.0 <= main["win_rate_min"] <= main["win_rate_mean"] <= 1.0


def test_matches_are_counted_rate_players_and_take_no_time_of_training(tmp_path: Path) -> None:
    league = replace(LEAGUES["pfsp"], matches=mf.MatchRules(every_env_steps=100, games=20))
    metrics = mf.train(league_run(league, 400), tmp_path).metrics
    counted = metrics["league"]
    cells = league_of(tmp_path)["matches"]["payoffs"]["cells"]["counts"]
    assert counted["matches"] == cells[:, 0].sum() == 20 * ((400 - 1) // 100)
    main = counted["players"]["main"]
    assert (main["rating_mu"], main["rating_sigma"]) == tuple(league_of(tmp_path)["ratings"]["main"])
    assert main["rating_sigma"] < 25 / 3
    assert (counted["members_sent"], counted["bytes_sent"], counted["cache_hits"]) == (0, 0, 0), "it is one process"
    assert 0.0 < counted["match_s"] < metrics["time_s"]
    driver = from_bytes(newest(tmp_path).read("driver"))
    whole, trained = driver["clock"]["elapsed_s"], driver["clock"]["training_s"]
    evaluated = driver["evaluation"]["spent_s"]
    # The time that rounds wait is no training time, so it does not count for env_steps_per_s.
    assert trained <= whole - evaluated - counted["match_s"] - counted["solve_s"]


def test_a_run_without_a_league_reports_none(tmp_path: Path) -> None:
    experiment = replace(league_run(LEAGUES["pfsp"], 200), league=None, policies={}, default_policy=MAIN)
    assert "league" not in mf.train(experiment, tmp_path).metrics


def test_snapshots_are_taken_by_agent_steps_and_are_the_published_weights(tmp_path: Path) -> None:
    mf.train(league_run(LEAGUES["latest_past"], WHOLE), tmp_path)
    snapshots = league_of(tmp_path)["members"]["snapshots"]
    assert (snapshots[0]["version"], snapshots[0]["agent_steps"]) == (0, 0)
    steps = [one["agent_steps"] for one in snapshots]
    assert all(after - before >= 150 for before, after in pairwise(steps))
    for one in snapshots:
        file = from_bytes(newest(tmp_path).read(f"frozen.main@{one['number']}"))
        assert (file["policy"], file["version"]) == ("main", one["version"])


def test_live_seats_alone_leave_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch)
    metrics = mf.train(league_run(mf.League(mf.Fictitious(), snapshots=OFTEN), WHOLE), tmp_path).metrics
    assert all(sorted(e.matchup.values())[0] == "main" for e in seen.episodes)
    assert all("@" in max(e.matchup.values()) for e in seen.episodes)
    assert metrics["policies"]["main"]["agent_steps_sampled"] == metrics["env_steps"]
    assert metrics["agent_steps"] == 2 * metrics["env_steps"]


def test_naive_self_play_learns_from_both_seats(tmp_path: Path) -> None:
    league = mf.League(mf.NaiveSelfPlay(), snapshots=mf.SnapshotRules(at_start=False, every_agent_steps=None))
    metrics = mf.train(league_run(league, 400), tmp_path).metrics
    assert metrics["policies"]["main"]["agent_steps_sampled"] == 2 * metrics["env_steps"]
    assert metrics["league"]["players"]["main"]["win_rate_mean"] is None
    assert metrics["league"]["members"] == 1


def test_workers_keep_no_more_entries_than_a_few_and_those_that_are_seated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from marlflow.sampling.worker import RolloutWorker

    sizes, frozen_ever = [], set()
    collect = RolloutWorker.collect

    def watched(worker: RolloutWorker, *args: Any, **settings: Any) -> Any:
        found = collect(worker, *args, **settings)
        frozen = [entry for entry in worker._table if "@" in entry]
        sizes.append(len(frozen))
        frozen_ever.update(frozen)
        return found

    monkeypatch.setattr(RolloutWorker, "collect", watched)
    rules = mf.SnapshotRules(every_agent_steps=30)

    def holding(worker_members: int) -> mf.Experiment:
        league = mf.League(mf.Fictitious(), snapshots=rules, store=mf.StoreSettings(worker_members=worker_members))
        return league_run(league, 2 * WHOLE, evaluation=mf.Evaluation(episodes=0))

    whole = mf.train(holding(3), tmp_path / "few").metrics
    assert len(frozen_ever) > 15
    # For each of a worker's two environments: one entry in its running episode, and one dealt by the last request.
    assert max(sizes) <= 4
    sizes.clear()
    assert without_times(mf.train(holding(1000), tmp_path / "all").metrics) == without_times(whole)
    assert max(sizes) > 10, "they were to be kept without a limit"


def test_a_pool_of_the_newest_deals_these_and_keeps_the_files_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    mf.train(league_run(mf.League(mf.Fictitious(), snapshots=OFTEN, pool=mf.Pool(1)), WHOLE), tmp_path)
    members = [next(name for name in e.matchup.values() if "@" in name) for e in seen.episodes]
    numbers = [int(name.partition("@")[2]) for name in members]
    # In the order of the ends: an episode that began before a snapshot may end after one that began later.
    newest_so_far = np.maximum.accumulate(numbers)
    assert all(number >= newest - 1 for number, newest in zip(numbers, newest_so_far.tolist(), strict=True))
    assert len(frozen_files(tmp_path)) == len(league_of(tmp_path)["members"]["snapshots"]) > 3


def test_two_policies_of_two_algorithms_meet_each_others_snapshots(tmp_path: Path) -> None:
    policies = {"main": MAIN, "rival": mf.Policy(SMALL_DQN, SMALL)}
    metrics = mf.train(league_run(LEAGUES["pfsp"], WHOLE, policies=policies), tmp_path).metrics
    players = metrics["league"]["players"]
    assert set(players) == {"main", "rival"}
    cells = league_of(tmp_path)["payoffs"]["cells"]["profiles"]
    met = {frozenset(name.partition("@")[0] for name in profile) for profile in cells}
    assert met >= {frozenset({"main", "rival"}), frozenset({"main"}), frozenset({"rival"})}


def breaking_run(league: mf.League) -> mf.Experiment:
    from tests.driver.rock_paper_scissors import RockPaperScissors

    class Breaking(RockPaperScissors):
        broken = 0

        def step(self, actions: dict[str, int]) -> Any:
            type(self).broken += 1
            if type(self).broken % 97 == 0:
                raise RuntimeError("it broke")
            return super().step(actions)

    return league_run(league, WHOLE, env=mf.Env(Breaking, num_envs=4), faults=mf.Faults(env_errors=100))


def test_a_broken_episode_is_counted_as_lost(tmp_path: Path) -> None:
    metrics = mf.train(breaking_run(LEAGUES["pfsp"]), tmp_path).metrics
    broken = metrics["faults"]["env_errors"]
    # One is counted when the next episode of its environment has ended.
    assert broken - 4 <= metrics["league"]["games_lost"] <= broken
    assert metrics["league"]["games_lost"] > 3
    assert metrics["league"]["games"] == metrics["episodes"]


def test_reports_have_the_faults_of_matches_that_the_budget_has(tmp_path: Path) -> None:
    league = replace(LEAGUES["pfsp"], matches=mf.MatchRules(every_env_steps=100, games=40))
    metrics = mf.train(breaking_run(league), tmp_path).metrics
    saved = kept(tmp_path)["driver"]
    assert saved["tally"]["faults"]["env_errors"] == saved["faults"]["env_errors"]
    # Training loses one game for each, so the others were matches.
    assert metrics["faults"]["env_errors"] > metrics["league"]["games_lost"] + 4


def test_with_another_mode_a_run_is_not_resumed_but_with_other_numbers(tmp_path: Path) -> None:
    mf.train(league_run(LEAGUES["pfsp"], HALF), tmp_path)
    with pytest.raises(
        mf.CheckpointUnusable, match=r"league\.matchmaker was 'marlflow\.league\.modes\.PFSP' when it was kept"
    ):
        mf.resume(league_run(LEAGUES["latest_past"], WHOLE), tmp_path)
    with pytest.raises(mf.CheckpointUnusable, match="it has league, which this run has not"):
        mf.resume(replace(league_run(LEAGUES["pfsp"], WHOLE), league=None, mapping=[mf.Rule("*", "main")]), tmp_path)
    other = mf.League(mf.PFSP(past=0.5), snapshots=mf.SnapshotRules(every_agent_steps=100), pool=mf.Pool(2))
    assert mf.resume(league_run(other, WHOLE), tmp_path).metrics["env_steps"] >= WHOLE


def test_evaluations_against_random_are_of_the_live_policy_and_no_games_of_the_league(tmp_path: Path) -> None:
    evaluation = mf.Evaluation(every_env_steps=200, episodes=4, opponents=["random"])
    metrics = mf.train(league_run(LEAGUES["pfsp"], HALF, evaluation=evaluation), tmp_path).metrics
    assert metrics["policies"]["main"]["eval_episodes"] == 4
    assert set(metrics["policies"]["main"]["eval_against"]) == {"random"}
    assert metrics["league"]["games"] == metrics["episodes"]


class Neighbor(mf.LeagueMode):
    """A mode of a user's own: always the newest snapshot. Not a dataclass, and without state."""

    def rival(self, view: mf.LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        past = view.members.past_in(role)
        return past[-1] if past else None


def test_a_mode_of_a_users_own_is_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(monkeypatch)
    mf.train(league_run(mf.League(Neighbor(), snapshots=OFTEN), HALF), tmp_path)
    assert all("@" in max(e.matchup.values()) for e in seen.episodes)


def test_teams_of_two_algorithms_play_each_other(tmp_path: Path) -> None:
    policies = {"adversary": MAIN, "agent": mf.Policy(SMALL_DQN, SMALL)}
    tag = mf.Env("simple_tag", {"max_cycles": 10}, num_envs=4)
    experiment = league_run(LEAGUES["pfsp"], WHOLE, env=tag, policies=policies)
    metrics = mf.train(experiment, tmp_path).metrics
    cells = league_of(tmp_path)["payoffs"]["cells"]
    assert all(a.startswith("adversary") and b.startswith("agent") for a, b in cells["profiles"])
    assert not any("@" in a and "@" in b for a, b in cells["profiles"])
    assert metrics["league"]["games"] == cells["counts"][:, 0].sum() == metrics["episodes"]
    assert all(player["snapshots"] > 1 for player in metrics["league"]["players"].values())


def test_an_experiment_can_be_run_twice(tmp_path: Path) -> None:
    experiment = league_run(LEAGUES["pfsp"], HALF)
    one, other = (mf.train(experiment, tmp_path / name).metrics for name in ("one", "other"))
    assert without_times(one) == without_times(other)
