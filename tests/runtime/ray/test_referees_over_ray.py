"""Referees over Ray: they play what rollout workers would, are replaced when they are lost, and hold no snapshots."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.driver.league import RefereedWorkers
from marlflow.runtime.ray import RayRuntime
from marlflow.sampling.protocol import EvaluationRequest, FrozenPolicy, Weights
from marlflow.sampling.receipts import Evaluated, Fault
from tests.driver.kept_runs import kept
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.driver.watching import Seen
from tests.league.runs import MAIN, OFTEN, league_run
from tests.runtime.ray.deadly import die_if_told, kill

pytestmark = pytest.mark.usefixtures("ray_session")

MATCHES = mf.MatchRules(every_env_steps=100, games=6, workers=1)


def run(env_steps: int, league: mf.League | None = None, **changes: Any) -> mf.Experiment:
    league = mf.League(mf.PFSP(), snapshots=OFTEN, matches=MATCHES) if league is None else league
    settings = {"evaluation": mf.Evaluation(episodes=0), "checkpoint": mf.CheckpointConfig(every_env_steps=200)}
    return league_run(league, env_steps, "ray", **{**settings, **changes})


def matches_of(run_dir: Path) -> tuple[int, int]:
    """The dealt games, and the games in the table."""
    matches = kept(run_dir)["driver"]["dealer"]["matchmaker"]["matches"]
    return matches["next"], int(matches["payoffs"]["cells"]["counts"][:, 0].sum())


def test_a_run_counts_each_match_of_its_referees_and_is_resumed(tmp_path: Path) -> None:
    first = mf.train(run(300), tmp_path).metrics
    dealt, counted = matches_of(tmp_path)
    assert dealt == counted >= 6, "at rest, all games of a set have been counted"
    assert first["league"]["matches"] == counted
    second = mf.resume(run(600), tmp_path).metrics
    dealt, counted = matches_of(tmp_path)
    assert dealt == counted == second["league"]["matches"] > first["league"]["matches"]
    assert second["faults"]["workers_lost"] == 0


@pytest.mark.slow
def test_asynchronous_workers_need_not_wait_for_matches_either(tmp_path: Path) -> None:
    patient = replace(
        MAIN, algorithm=mf.PPO(batch_agent_steps=60, epochs=1, minibatch_agent_steps=32, max_staleness=50)
    )
    rollouts = replace(run(1).rollouts, pace="asynchronous")
    metrics = mf.train(run(400, rollouts=rollouts, policies={"main": patient}), tmp_path).metrics
    dealt, counted = matches_of(tmp_path)
    assert dealt == counted == metrics["league"]["matches"] >= 6


@pytest.mark.slow
def test_a_lost_referee_is_replaced_and_its_games_are_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, lost = RefereedWorkers._play, []

    async def losing(workers: RefereedWorkers, games: EvaluationRequest) -> list[Evaluated]:
        if not lost:
            (referee,) = workers._players._workers.all  # type: ignore[attr-defined]
            lost.append(referee.name)
            kill(referee.actor)
        return await play(workers, games)

    monkeypatch.setattr(RefereedWorkers, "_play", losing)
    seen = Seen(monkeypatch)
    metrics = mf.train(run(500), tmp_path).metrics
    assert lost == ["referee 0"]
    assert metrics["faults"]["workers_lost"] == 1
    dealt, counted = matches_of(tmp_path)
    assert dealt == counted >= 6
    assert metrics["league"]["games"] == len(seen.episodes), "training lost nothing"


@dataclass(frozen=True)
class DeadlyWhereItArrives:
    """An environment that ends the next process in which it arrives, while that starts."""

    marker: Path

    def __call__(self) -> RockPaperScissors:
        return RockPaperScissors()

    def __setstate__(self, state: list[Path]) -> None:
        object.__setattr__(self, "marker", state[0])
        die_if_told(self.marker)

    def __getstate__(self) -> list[Path]:
        return [self.marker]


@pytest.mark.slow
def test_a_referee_that_is_lost_while_it_starts_is_counted_and_replaced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    play, marker = RefereedWorkers._play, tmp_path / "marker"

    async def losing(workers: RefereedWorkers, games: EvaluationRequest) -> list[Evaluated]:
        monkeypatch.setattr(RefereedWorkers, "_play", play)
        (referee,) = workers._players._workers.all  # type: ignore[attr-defined]
        kill(referee.actor)
        marker.touch()
        return await play(workers, games)

    monkeypatch.setattr(RefereedWorkers, "_play", losing)
    metrics = mf.train(run(500, env=mf.Env(DeadlyWhereItArrives(marker), num_envs=4)), tmp_path / "run").metrics
    assert not marker.exists()
    assert metrics["faults"]["workers_lost"] == 2
    dealt, counted = matches_of(tmp_path / "run")
    assert dealt == counted >= 6
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.slow
def test_psro_waits_for_the_matches_of_its_referees(tmp_path: Path) -> None:
    mode = mf.PSRO(agent_steps=300, games=8)
    league = mf.League(mode, snapshots=mf.SnapshotRules(every_agent_steps=None), matches=MATCHES)
    mf.train(run(900, league), tmp_path)
    state = kept(tmp_path)["driver"]["dealer"]["matchmaker"]
    assert state["mode"]["iteration"] >= 1
    assert all(len(mixture) == state["mode"]["iteration"] + 1 for mixture in state["mode"]["meta"])


@pytest.mark.slow
def test_referees_play_as_rollout_workers_do_and_hold_nothing_afterwards() -> None:
    # With an inference actor, which referees do not ask.
    experiment = run(100, placement=mf.RunPlacement(inference=mf.InferencePlacement()))
    faults: list[Fault] = []
    runtime = RayRuntime()
    try:
        spec = ready(experiment).spec
        parts = runtime.start(spec, faults.append)
        flat = spec.learners["main"].learner().published["main"].flat
        weights = {"main": Weights(0, ray.put(flat))}
        frozen = {f"main@{n}": FrozenPolicy("main", Weights(n, ray.put(flat * np.float32(1 + n)))) for n in (1, 2)}
        seats = [{"player_0": "main", "player_1": f"main@{1 + n % 2}"} for n in range(6)]
        request = EvaluationRequest(range(6), weights, seats, {"main": "sampled"}, frozen)
        referees: Any = parts.referees
        (one,) = referees.all

        def play(workers: Any) -> Any:
            made: Evaluated = asyncio.run(workers.evaluate(request))
            return made.sent.members, [(one.returns, one.matchup, one.fingerprint) for one in made.episodes]

        sent, games = play(referees)
        assert games == play(parts.workers)[1]
        assert ray.get(one.actor.__ray_call__.remote(lambda actor: tuple(actor._worker._worker._table))) == ("main",)
        assert play(referees) == (sent, games), "they are sent again"
        assert sent == 2
        kill(one.actor)
        assert play(referees) == (sent, games)
        assert [(fault.kind.value, fault.where) for fault in faults] == [("workers_lost", "referee 0")]
    finally:
        runtime.close()
