"""PPO and DQN learn to balance poles: a little in the default tests, and to the end in those marked `learning`.

A random policy keeps a pole up for some 22 steps, of 200. The short tests end when a return is reached, and fail long
after it should have been, so that another processor's rounding does not decide them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.base.schedules import Linear
from marlflow.config.experiment import Env, Evaluation, Experiment, Log, Policy, Rollouts, RuntimeConfig, Stop
from marlflow.driver.train import train
from marlflow.env import cartpole_team
from marlflow.sampling.mapping import Rule

RANDOM_RETURN = 22.0


def team(env_steps: int, seed: int = 0, **policies: Algorithm) -> Experiment:
    """Four carts with a limit of 200 steps; of two policies each plays two of them, a single one plays all."""
    names = list(policies)
    rules = (Rule("cart_0", names[0]), Rule("cart_1", names[0]), Rule("*", names[-1]))
    return Experiment(
        Env(cartpole_team.parallel_env, num_envs=8),
        policies={name: Policy(algorithm) for name, algorithm in policies.items()},
        mapping=rules if len(names) > 1 else rules[-1:],
        rollouts=Rollouts(num_workers=1, fragment_env_steps=400),
        runtime=RuntimeConfig("inline"),
        stop=Stop(env_steps=env_steps),
        evaluation=Evaluation(episodes=0),
        log=Log(every_env_steps=env_steps, console="none", tensorboard=False),
        seed=seed,
    )


FAST_PPO = PPO(batch_agent_steps=1_600, epochs=8, minibatch_agent_steps=128, learning_rate=1e-3)
FAST_DQN = DQN(
    learning_rate=1e-3,
    train_every_agent_steps=8,
    learning_starts_agent_steps=500,
    epsilon=Linear(1.0, 0.05, 6_000),
    target_every_updates=100,
)


@pytest.mark.parametrize("algorithm", [pytest.param(FAST_PPO, id="ppo"), pytest.param(FAST_DQN, id="dqn")])
def test_each_algorithm_soon_leaves_chance_behind(algorithm: Algorithm, tmp_path: Path) -> None:
    """Of 25 seeds each reached this within 17,000 env steps, on average after 11,000."""
    experiment = team(50_000, carts=algorithm)
    goal = Stop(env_steps=50_000, policies={"carts": 2.5 * RANDOM_RETURN})
    result = train(replace(experiment, stop=goal), tmp_path)
    assert result.stopped_by == "stop.policies.carts.return_mean=55"


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(5))
def test_both_learn_side_by_side_to_keep_poles_up(seed: int, tmp_path: Path) -> None:
    """At the same time, which ends the run: DQN may fall back from there."""
    goals = {"ppo": 150.0, "dqn": 150.0}
    experiment = team(200_000, seed, ppo=PPO(batch_agent_steps=2_000), dqn=DQN())
    result = train(replace(experiment, stop=replace(experiment.stop, policies=goals)), tmp_path)
    for name, goal in goals.items():
        mean = result.metrics["policies"][name]["return_mean"]
        assert mean is not None
        assert mean >= goal, name
