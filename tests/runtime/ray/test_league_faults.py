"""A league over Ray that loses a worker in an episode, and a learner after a snapshot.

Whatever is lost, each game that was delivered counts once, as it was played, and no snapshot changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from marlflow.base.serialization import from_bytes
from marlflow.config.experiment import CheckpointConfig, Env, Evaluation, Experiment, Policy, Rollouts, Stop
from marlflow.driver.stored_members import StoredMembers
from marlflow.driver.train import resume, train
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.runs.saved_runs import newest
from marlflow.sampling.population import PopulationChange
from marlflow.sampling.protocol import FrozenPolicy
from tests.driver.kept_runs import kept
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.driver.watching import Seen
from tests.league.runs import LEAGUES, league_run
from tests.runtime.ray.deadly import DeadlyPPO, die_if_told
from tests.runtime.small_runs import SMALL

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.slow]


class DeadlyRockPaperScissors(RockPaperScissors):
    """Its seventh step ends the worker's process, when told to."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def step(self, actions: dict[str, int]) -> Any:
        if self.round == 6:
            die_if_told(self.marker)
        return super().step(actions)


def deadly(folder: Path) -> Experiment:
    """An asynchronous league, whose learner ends after an update once `learner` is there, and a worker for `worker`."""
    learns = DeadlyPPO(
        batch_agent_steps=60, epochs=1, minibatch_agent_steps=32, max_staleness=50, marker=folder / "learner"
    )
    return league_run(
        LEAGUES["pfsp"],
        800,
        "ray",
        env=Env(partial(DeadlyRockPaperScissors, folder / "worker"), num_envs=4),
        policies={"main": Policy(learns, SMALL)},
        rollouts=Rollouts(num_workers=2, fragment_env_steps=12, pace="asynchronous"),
        evaluation=Evaluation(episodes=0),
        checkpoint=CheckpointConfig(every_env_steps=200),
    )


def check(run_dir: Path, seen: Seen) -> list[dict[str, Any]]:
    """The table has the games that were delivered, and each snapshot's file is there; return the snapshots."""
    league = kept(run_dir)["driver"]["dealer"]["matchmaker"]
    cells = league["payoffs"]["cells"]
    counted = dict(zip(map(tuple, cells["profiles"]), cells["counts"][:, 0].tolist(), strict=True))
    assert counted == Counter(tuple(episode.matchup.values()) for episode in seen.episodes)
    assert len({(episode.env, episode.episode) for episode in seen.episodes}) == len(seen.episodes)
    snapshots: list[dict[str, Any]] = league["members"]["snapshots"]
    checkpoint = newest(run_dir)
    for one in snapshots:
        file = from_bytes(checkpoint.read(f"frozen.main@{one['number']}"))
        assert (file["policy"], file["version"]) == ("main", one["version"])
    return snapshots


def test_a_lost_worker_and_a_learner_lost_after_a_snapshot_leave_tables_and_members_consistent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: dict[str, Any] = {}
    change, add = LeagueMatchmaker.change_population, StoredMembers.add

    def watched(league: LeagueMatchmaker, published: Mapping[str, int], steps: Mapping[str, int]) -> PopulationChange:
        made = change(league, published, steps)
        if made.freeze:
            (tmp_path / {2: "worker", 3: "learner"}.get(len(league.members.snapshots), "none")).touch()
        return made

    def added(store: StoredMembers, entry: str, frozen: FrozenPolicy) -> None:
        taken[entry] = ray.get(frozen.weights.flat).copy()
        add(store, entry, frozen)

    monkeypatch.setattr(LeagueMatchmaker, "change_population", watched)
    monkeypatch.setattr(StoredMembers, "add", added)
    seen = Seen(monkeypatch)
    metrics = train(deadly(tmp_path), tmp_path / "run").metrics
    assert metrics["faults"]["workers_lost"] == metrics["faults"]["learners_lost"] == 1
    assert metrics["league"]["games"] == len(seen.episodes) == metrics["episodes"]
    before = check(tmp_path / "run", seen)
    resumed = resume(replace(deadly(tmp_path), stop=Stop(env_steps=1_100)), tmp_path / "run").metrics
    # The episodes of the worker's two environments; its successor may not exist before the resume.
    assert 0 < resumed["league"]["games_lost"] <= 2
    assert resumed["league"]["games"] == len(seen.episodes)
    snapshots = check(tmp_path / "run", seen)
    assert len(snapshots) > len(before) > 2
    assert snapshots[: len(before)] == before
    versions = [one["version"] for one in snapshots]
    assert versions == sorted(set(versions)), "no version came twice, though the learner was restored"
    for entry, flat in taken.items():
        np.testing.assert_array_equal(from_bytes(newest(tmp_path / "run").read(f"frozen.{entry}"))["flat"], flat)
