"""A long update is ended by `stop.time_s` and by signals, wherever it runs, and the run is saved."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.base.limits import Limit
from marlflow.env.games import guess_number
from marlflow.learner.gradient_exchange import SingleProcess
from marlflow.runs.saved_runs import newest
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.test_graceful_shutdown import Signals
from tests.runtime.small_runs import SMALL, SMALL_DQN, policies, small_run
from tests.runtime.team_runs import teams
from tests.runtime.test_meta_learning import family

# Minutes of updates after a single round, which is over in a moment.
LONG: dict[str, Any] = {"epochs": 20_000, "minibatch_agent_steps": 20}
STOP = mf.Stop(time_s=0.5, grace_period_s=2.0)
ROUND = mf.Rollouts(num_workers=2, fragment_env_steps=40)


def of_two(algorithm: mf.Algorithm) -> mf.Experiment:
    return small_run(policies=policies(hunters=algorithm, prey=SMALL_DQN))


def happo() -> mf.Experiment:
    return replace(teams(1_000), learners={"happo": mf.LearnerConfig(("left", "right"), mf.HAPPO(60, **LONG))})


def archer() -> mf.Experiment:
    settings: dict[str, Any] = {"batch_agent_steps": 20, "minibatch_agent_steps": 20, "batch_utterances": 8}
    algorithm = mf.ArCHer(**settings, critic_updates=20_000, warm_up_updates=1)
    env = mf.Env(guess_number.parallel_env, num_envs=4)
    return small_run(env=env, policies={"archer": mf.Policy(algorithm, SMALL)}, mapping=(mf.Rule("*", "archer"),))


def of_replay() -> mf.Experiment:
    """An update for each row, in one call, of which each has one minibatch."""
    return of_two(replace(SMALL_DQN, train_every_agent_steps=1, learning_starts_agent_steps=16))


EXPERIMENTS = {
    "ppo": lambda: of_two(mf.PPO(batch_agent_steps=60, **LONG)),
    "ddppo": lambda: of_two(mf.DDPPO(batch_agent_steps=60, **LONG)),
    "happo": happo,
    "maml": lambda: family(team=mf.MAML(epochs=20_000, minibatch_tasks=2)),
    "archer": archer,
    "dqn": of_replay,
}
OTHERS = ("happo", "maml", "archer", "dqn")
ROUNDS = {"dqn": replace(ROUND, fragment_env_steps=20_000)}


# tests/learner/test_update_limit.py has the loop of each.
@pytest.mark.parametrize("name", ["ppo", "ddppo", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_long_update_ends_with_the_time_and_the_run_is_saved(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = mf.train(replace(EXPERIMENTS[name](), rollouts=ROUNDS.get(name, ROUND), stop=STOP), tmp_path)
    assert result.stopped_by == "stop.time_s=0.5"
    assert newest(tmp_path).env_steps == result.metrics["env_steps"] > 0
    assert "since the run ends: the rest of its rows" in caplog.text


def test_a_signal_ends_a_long_update_and_the_run_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Signals, "made", 490)
    monkeypatch.setattr(Signals, "to_send", (signal.SIGTERM,))
    experiment = of_two(mf.PPO(batch_agent_steps=60, **LONG))
    env = mf.Env(Signals, {"max_cycles": 50}, num_envs=4)
    result = mf.train(replace(experiment, env=env, stop=mf.Stop(10_000, grace_period_s=8.0)), tmp_path)
    assert result.stopped_by == "terminated"
    assert newest(tmp_path).env_steps == result.metrics["env_steps"] == 80
    assert result.metrics["learners"]["hunters"]["updates"] < 20_000


def test_a_run_continues_bit_for_bit_after_an_update_that_was_ended_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = 0

    def passes_once(exchange: SingleProcess, limit: Limit) -> bool:
        nonlocal asks
        asks += 1
        return asks in (9, 40)

    monkeypatch.setattr(SingleProcess, "ends", passes_once)
    asked = []

    def note_whole() -> None:
        nonlocal asks
        asked.append(asks)
        asks = 40

    resumes_exactly(small_run(env_steps=1_040), tmp_path, 560, note_whole)
    assert asked[0] - (asks - 40) > 40, "both updates were to be ended before the checkpoint"


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_over_ray_learners_replicas_and_groups_end_their_updates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A learner of two processes, and replicas on two workers; each of the two asks Ray's store."""
    caplog.set_level("INFO")
    two = mf.Policy(mf.PPO(batch_agent_steps=60, **LONG), SMALL, mf.PlacementOverrides(num_learners=2))
    experiment = small_run(
        "ray", policies={"hunters": two, **policies(prey=mf.DDPPO(batch_agent_steps=60, **LONG))}, rollouts=ROUND
    )
    result = mf.train(replace(experiment, stop=mf.Stop(time_s=1.0, grace_period_s=4.0)), tmp_path)
    assert result.stopped_by == "stop.time_s=1"
    assert newest(tmp_path).env_steps == result.metrics["env_steps"] > 0
    for learner in ("hunters", "prey"):
        assert f"an update of learner {learner} was ended" in caplog.text
        assert result.metrics["learners"][learner]["updates"] < 20_000
