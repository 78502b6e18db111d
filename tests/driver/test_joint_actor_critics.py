"""Whole runs of MADDPG, MATD3 and MASAC: of one agent they are DDPG, TD3 and SAC; resumed they go on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.algorithms.ddpg import DDPG
from marlflow.algorithms.maddpg import MADDPG
from marlflow.algorithms.masac import MASAC
from marlflow.algorithms.matd3 import MATD3
from marlflow.algorithms.sac import SAC
from marlflow.algorithms.td3 import TD3
from marlflow.config.experiment import (
    CheckpointConfig,
    Env,
    Evaluation,
    Experiment,
    Log,
    Policy,
    Rollouts,
    RuntimeConfig,
    Stop,
)
from marlflow.env import cartpole_team, pendulum_team
from marlflow.sampling.mapping import Rule
from tests.driver.kept_runs import kept

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
    experiment = Experiment(
        Env(env, {"max_cycles": 25}, num_envs=2),
        policies={"team": Policy(algorithm, mf.MLP((8, 8)))},
        mapping=(Rule("*", "team"),),
        rollouts=Rollouts(num_workers=1, fragment_env_steps=10),
        runtime=RuntimeConfig("inline"),
        checkpoint=CheckpointConfig(every_env_steps=None),
        evaluation=Evaluation(episodes=0),
        log=Log(every_env_steps=100, console="none", tensorboard=False),
        stop=Stop(300),
        **changes,
    )
    return mf.train(experiment, folder)


def one_pendulum(**settings: Any) -> Any:
    return pendulum_team.parallel_env(num_agents=1, **settings)


def one_cart(**settings: Any) -> Any:
    return cartpole_team.parallel_env(num_agents=1, **settings)


RATES = {"learning_rate": 2e-3, "actor_learning_rate": 1e-3}
PAIRS = [
    (DDPG(**SIZES, **RATES), MADDPG(**SIZES, **RATES), one_pendulum),
    (TD3(**SIZES), MATD3(**SIZES, learning_rate=3e-4), one_pendulum),
    (SAC(**SIZES), MASAC(**SIZES, learning_rate=3e-4), one_pendulum),
    (SAC(**SIZES), MASAC(**SIZES, learning_rate=3e-4), one_cart),
]


@pytest.mark.parametrize(("alone", "joint", "env"), PAIRS, ids=["ddpg", "td3", "sac", "discrete sac"])
def test_with_one_agent_it_is_the_algorithm_of_one_agent(alone: Any, joint: Any, env: Any, tmp_path: Path) -> None:
    results = [run_of(algorithm, env, tmp_path / algorithm.name) for algorithm in (alone, joint)]
    expected, found = (kept(result.run_dir)["learner.team"] for result in results)
    assert expected["updates"] > 50
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
