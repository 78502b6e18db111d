"""Leagues that are resumed with other workers, or from the checkpoint before a damaged one."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.runs.saved_runs import newest
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import Seen, reports
from tests.league.runs import LEAGUES, OFTEN, league_run

HALF, WHOLE = 432, 864


def league_of(run_dir: Path) -> Any:
    return kept(run_dir)["driver"]["dealer"]["matchmaker"]


@pytest.mark.parametrize("num_workers", [1, 4])
def test_with_other_workers_every_game_counts_once_and_no_member_is_lost(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    league = replace(LEAGUES["pfsp"], store=mf.StoreSettings(worker_members=1))
    mf.train(league_run(league, HALF), tmp_path)
    before = league_of(tmp_path)["members"]["snapshots"]
    rollouts = mf.Rollouts(num_workers=num_workers, fragment_env_steps=24 // num_workers)
    metrics = mf.resume(league_run(league, WHOLE, rollouts=rollouts), tmp_path).metrics
    assert metrics["faults"]["episodes_abandoned"] == 0
    cells = league_of(tmp_path)["payoffs"]["cells"]
    counted = dict(zip(map(tuple, cells["profiles"]), cells["counts"][:, 0].tolist(), strict=True))
    assert counted == Counter(tuple(episode.matchup.values()) for episode in seen.episodes)
    assert league_of(tmp_path)["members"]["snapshots"][: len(before)] == before


@pytest.mark.parametrize("limit", [1, 10_000])
def test_games_go_on_counting_after_a_resume_restarted_the_running_ones(limit: int, tmp_path: Path) -> None:
    """A restarted episode has another number in rows, and the one that was dealt in its result."""
    settings = mf.CheckpointConfig(every_env_steps=None, replay_max_env_steps=limit)
    before = mf.train(league_run(LEAGUES["pfsp"], HALF, checkpoint=settings), tmp_path).metrics
    after = mf.resume(league_run(LEAGUES["pfsp"], 2 * HALF, checkpoint=settings), tmp_path).metrics
    assert after["faults"]["episodes_restarted"] == (4 if limit == 1 else 0)
    # Each environment loses at most the steps of one game, of ten.
    new = after["league"]["games"] - before["league"]["games"]
    assert new >= (after["env_steps"] - before["env_steps"]) // 10 - 4
    assert after["league"]["games_stale"] == after["league"]["games_lost"] == 0


def test_a_damaged_snapshot_is_named_and_the_checkpoint_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    experiment = league_run(LEAGUES["pfsp"], 640, checkpoint=mf.CheckpointConfig(every_env_steps=160, keep=9))
    mf.train(experiment, whole)
    shutil.copytree(whole, parts)
    last = newest(parts)
    before = sorted((parts / "checkpoints").iterdir(), key=lambda path: int(path.name))[-2]
    new = [path for path in last.path.glob("frozen.*") if not (before / path.name).exists()]
    assert new, "there was to be a snapshot since the checkpoint before"
    new[0].write_bytes(new[0].read_bytes()[:-1] + b"?")
    mf.resume(experiment, parts)
    name = new[0].name.removesuffix(".safetensors").replace("%40", "@")
    assert any(name in record.getMessage() and "is not whole" in record.getMessage() for record in caplog.records)
    assert_equal(league_of(parts), league_of(whole))


def test_with_hardly_any_memory_a_run_is_the_same(tmp_path: Path) -> None:
    few, all_of_them = tmp_path / "few", tmp_path / "all"
    rules = mf.SnapshotRules(every_agent_steps=40)
    for folder, store in ((few, mf.StoreSettings(memory_bytes=0, worker_members=1)), (all_of_them, mf.StoreSettings())):
        mf.train(league_run(mf.League(mf.Fictitious(), snapshots=rules, store=store), WHOLE), folder)
    assert_equal(without_times(reports(few)), without_times(reports(all_of_them)))
    assert len(league_of(few)["members"]["snapshots"]) > 15


def test_with_few_different_snapshots_in_a_round_all_are_met_and_it_goes_on_as_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, met = Seen(monkeypatch), set[str]()
    league = mf.League(mf.Fictitious(), snapshots=OFTEN, store=mf.StoreSettings(distinct_members=2))

    def note_whole() -> None:
        met.update(name for episode in seen.episodes for name in episode.matchup.values() if "@" in name)

    resumed = resumes_exactly(league_run(league, WHOLE), tmp_path, HALF, note_whole)
    assert len(met) >= len(league_of(resumed.whole)["members"]["snapshots"]) - 1 > 3
