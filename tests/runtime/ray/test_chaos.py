"""Processes of every kind are killed while a run trains; it ends by itself, and nothing was done twice in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import marlflow as mf
from tests.runtime.ray import chaos_parts
from tests.runtime.ray.chaos_checks import Evidence, violations
from tests.runtime.ray.chaos_killer import Killer
from tests.runtime.ray.chaos_parts import Carts, JournalledDQN, JournalledPPO
from tests.runtime.ray.processes import assert_no_actor_is_left
from tests.runtime.small_runs import SMALL, small_run

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.slow]

PARTS = {"worker": 2, "learner-hunters": 1, "learner-prey": 1, "replay-prey": 1}
VICTIMS = ("worker", "learner-prey", "learner-hunters", "worker")
"""The replay lives with its learner, and dies with it: so one kill is of both."""


def chaotic_run(folder: Path) -> mf.Experiment:
    """PPO and DQN, until their returns are what they are only once everything was killed and is back."""
    ppo = JournalledPPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64, folder=folder)
    dqn = JournalledDQN(
        batch_agent_steps=16,
        train_every_agent_steps=10,
        learning_starts_agent_steps=100,
        target_every_updates=20,
        publish_every_updates=3,
        folder=folder,
    )
    return small_run(
        "ray",
        env=mf.Env(partial(Carts, folder, max_cycles=20, rewards=(1.0, 1000.0)), num_envs=4),
        policies={"hunters": mf.Policy(ppo, SMALL), "prey": mf.Policy(dqn, SMALL)},
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40),
        stop=mf.Stop(time_s=300.0, policies={"hunters": 5_000.0, "prey": 5_000.0}),
        checkpoint=mf.CheckpointConfig(every_env_steps=500),
        faults=mf.Faults(checkpoints_failed=len(VICTIMS)),
        log=mf.Log(every_env_steps=2_000, console="none", tensorboard=False),
    )


def test_whatever_is_killed_nothing_is_done_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "journals"
    folder.mkdir()
    experiment = chaotic_run(folder)
    killer = Killer(folder, VICTIMS, PARTS, (folder / "enough").touch, apart_s=0.5, seed=4)
    monkeypatch.setattr(chaos_parts, "BETWEEN_ROUNDS", [killer.round_begins])
    # What is tried before the run is not in its journals.
    monkeypatch.setattr("marlflow.checks.commands.rehearsal_problems", lambda *_: [])
    try:
        result = mf.train(experiment, tmp_path / "run")
    finally:
        killer.stop()
    assert [part for part, _ in killer.killed] == list(VICTIMS)
    assert isinstance(result.metrics["object_store"]["bytes"], int)
    assert result.stopped_by.startswith("stop.policies.hunters.return_mean")
    dqn = experiment.policies["prey"].algorithm
    killed = [process for _, process in killer.killed]
    evidence = Evidence(folder, result.metrics, killed, experiment.seed, experiment.env.num_envs, dqn)
    assert violations(evidence) == []
    assert_no_actor_is_left()
