"""Whole runs of MADDPG, MATD3 and MASAC: with one agent they are DDPG, TD3 and SAC; resumes are exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

import marlflow as mf
from marlflow.env.games import cartpole_team, pendulum_team
from tests.driver.joint_learning import ThreeGroups, team_run
from tests.driver.joint_replay_learning import sum_run
from tests.driver.kept_runs import kept
from tests.driver.resumed_runs import resumes_exactly

SIZES: dict[str, Any] = {
    "batch_agent_steps": 16,
    "train_every_agent_steps": 4,
    "learning_starts_agent_steps": 40,
    "replay_agent_steps": 150,
    "discount": 0.9,
    "publish_every_updates": 2,
    "tau": 0.05,
}


def run_of(algorithm: Any, env: Any, folder: Path, **changes: Any) -> mf.Result:
    experiment = mf.Experiment(
        mf.Env(env, {"max_cycles": 25}, num_envs=2),
        policies={"team": mf.Policy(algorithm, mf.MLP((8, 8)))},
        mapping=(mf.Rule("*", "team"),),
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=10),
        runtime=mf.RuntimeConfig("inline"),
        checkpoint=mf.CheckpointConfig(every_env_steps=None),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(every_env_steps=100, console="none", tensorboard=False),
        stop=mf.Stop(160),
        **changes,
    )
    return mf.train(experiment, folder)


def one_pendulum(**settings: Any) -> Any:
    return pendulum_team.parallel_env(num_agents=1, **settings)


def one_cart(**settings: Any) -> Any:
    return cartpole_team.parallel_env(num_agents=1, **settings)


RATES = {"learning_rate": 2e-3, "actor_learning_rate": 1e-3}
PAIRS = [
    (mf.DDPG(**SIZES, **RATES), mf.MADDPG(**SIZES, **RATES), one_pendulum),
    (mf.TD3(**SIZES), mf.MATD3(**SIZES, learning_rate=3e-4), one_pendulum),
    (mf.SAC(**SIZES), mf.MASAC(**SIZES, learning_rate=3e-4), one_pendulum),
    (mf.SAC(**SIZES), mf.MASAC(**SIZES, learning_rate=3e-4), one_cart),
]


@pytest.mark.parametrize(("alone", "joint", "env"), PAIRS, ids=["ddpg", "td3", "sac", "discrete sac"])
def test_with_one_agent_it_is_the_algorithm_of_one_agent(alone: Any, joint: Any, env: Any, tmp_path: Path) -> None:
    results = [run_of(algorithm, env, tmp_path / algorithm.name) for algorithm in (alone, joint)]
    expected, found = (kept(result.run_dir)["learner.team"] for result in results)
    assert expected["updates"] > 20
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


class BoxAndDiscrete(ThreeGroups):
    """The listener's action is a number, and means 1 if it is positive."""

    def action_space(self, agent: str) -> Any:
        return Box(-2.0, 2.0, (1,), np.float32) if agent == "listener_0" else super().action_space(agent)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        made = {agent: int(action[0] > 0.0) if agent == "listener_0" else action for agent, action in actions.items()}
        return super().step(made)


def team_of(algorithm: Any, env_steps: int) -> mf.Experiment:
    """Speaker and listener learn together, and a walker learns alone; the speaker sometimes leaves early."""
    learners = {"pair": mf.LearnerConfig(["speaker", "listener"], algorithm)}
    return replace(team_run(env_steps, learners=learners), env=mf.Env(BoxAndDiscrete, num_envs=4))


TEAM_SIZES = {**SIZES, "learning_starts_agent_steps": 60, "train_every_agent_steps": 8}


@pytest.mark.parametrize("kind", [mf.MADDPG, mf.MATD3, mf.MASAC])
def test_a_resumed_run_of_box_and_discrete_actions_is_one_that_was_not_ended(kind: Any, tmp_path: Path) -> None:
    metrics = resumes_exactly(team_of(kind(**TEAM_SIZES), 160), tmp_path, 80).metrics
    pair, policies = metrics["learners"]["pair"], metrics["policies"]
    sampled = sum(policies[name]["agent_steps_sampled"] for name in ("speaker", "listener"))
    assert pair["updates"] == (sampled - 60) // 8 > 10
    assert all(np.isfinite(term) for term in pair["loss"].values())
    assert {"critics/speaker", "actor/listener"} <= pair["loss"].keys()


@pytest.mark.slow
def test_teams_whose_agents_come_and_go_learn_over_ray(tmp_path: Path, ray_session: None) -> None:
    """Four seats and two, one never taken, with masks and the state of the environment."""
    learners = {"both": mf.LearnerConfig(["red", "blue"], mf.MASAC(**SIZES, critic_sees=["state"]))}
    run = sum_run(80, "ray", learners=learners, rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=40))
    metrics = mf.train(run, tmp_path).metrics
    both, policies = metrics["learners"]["both"], metrics["policies"]
    sampled = sum(policy["agent_steps_sampled"] for policy in policies.values())
    assert both["updates"] == (sampled - 40) // 4 > 10
    assert policies["red"]["version"] == policies["blue"]["version"] == both["version"] > 0
    assert all(np.isfinite(term) for term in both["loss"].values())
