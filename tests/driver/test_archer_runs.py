"""Whole runs of ArCHer: N, resume, N is 2N; with PPO and DQN in the run it learns the same; counts are exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.env.games import cartpole_team, guess_number
from tests.driver.kept_runs import kept
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import standing

MLP = mf.MLP((8,))
ARCHER = mf.ArCHer(
    batch_agent_steps=40, minibatch_agent_steps=15, critic_updates=3, batch_utterances=8, warm_up_updates=8
)
OTHERS: dict[str, Any] = {
    "ppo": mf.PPO(batch_agent_steps=40, epochs=2, minibatch_agent_steps=20),
    "dqn": mf.DQN(batch_agent_steps=16, train_every_agent_steps=8, learning_starts_agent_steps=40),
}


def conversation(**arguments: Any) -> Any:
    """Three agents, whose games have no influence on each other."""
    env = guess_number.parallel_env(3, **arguments)
    env.possible_agents = ["archer_0", "ppo_0", "dqn_0"]
    return env


def experiment(algorithms: dict[str, Any], env_steps: int, may_stop: bool = False) -> mf.Experiment:
    return mf.Experiment(
        mf.Env(conversation, {"may_stop": may_stop}, num_envs=4),
        {name: mf.Policy(algorithm, MLP) for name, algorithm in algorithms.items()},
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=28),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps),
        evaluation=mf.Evaluation(episodes=0),
        seed=3,
    )


RANDOM = dict.fromkeys(OTHERS, mf.Random())


def test_a_run_resumed_is_the_run_uninterrupted(tmp_path: Path) -> None:
    archer = replace(ARCHER, end_token=2)
    # With 56 env steps a round, a batch is half gathered at the checkpoint, and utterances are half said.
    resumes_exactly(experiment({"archer": archer, **OTHERS}, 644, may_stop=True), tmp_path, 168).assert_mid_way()


def test_beside_ppo_and_dqn_each_learns_what_it_learns_alone(tmp_path: Path) -> None:
    together = tmp_path / "together"
    mf.train(experiment({"archer": ARCHER, **OTHERS}, 560), together)
    for name, algorithm in {"archer": ARCHER, **OTHERS}.items():
        alone = tmp_path / name
        mf.train(experiment({"archer": mf.Random(), **RANDOM, name: algorithm}, 560), alone)
        found, expected = kept(together)[f"learner.{name}"], kept(alone)[f"learner.{name}"]
        assert found.keys() == expected.keys()
        for key, value in found.items():
            np.testing.assert_array_equal(value, expected[key], err_msg=f"{name}: {key}")


def test_critics_and_actor_are_counted_and_published_exactly(tmp_path: Path) -> None:
    result = mf.train(experiment({"archer": ARCHER, **RANDOM}, 1_000), tmp_path)
    found = standing(result.metrics, "archer")
    state = kept(tmp_path)["learner.archer"]
    # A version for each batch; 3 steps of the critics each, and steps of the actor after 9 steps of the critics.
    batches = state["version"]
    assert state["updates"] == found["updates"] > 3 * batches > 30
    assert state["optimizer/critics/steps"] == 3 * batches
    assert state["optimizer/actor/steps"] == state["optimizer/baseline/steps"] == state["updates"] - 3 * batches
    assert {"q_error", "v_error", "policy", "entropy", "baseline_error"} <= found["loss"].keys()
    # The replay has the utterances that ended, of which there are about a third as many as tokens.
    stored = kept(tmp_path)["replay.archer"]["stop"]
    assert found["agent_steps_trained"] <= 8 * 3 * batches + result.metrics["policies"]["archer"]["agent_steps_sampled"]
    assert stored == pytest.approx(result.metrics["policies"]["archer"]["agent_steps_sampled"] / 3, abs=12)


def test_an_environment_without_utterances_is_refused_before_anything_starts(tmp_path: Path) -> None:
    team = mf.Experiment(mf.Env(cartpole_team.parallel_env), {"cart": mf.Policy(ARCHER, MLP)})
    with pytest.raises(mf.ConfigInvalid, match=r"needs an observation that is a Dict with 'utterance'"):
        mf.train(team, tmp_path)
