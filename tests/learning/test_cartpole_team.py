"""PPO and DQN learn to balance poles: a little in the default tests, and to the end in those marked `learning`.

A random policy keeps a pole up for some 22 steps, of 200. The short tests end when a return is reached, and fail long
after it should have been, so that another processor's rounding does not decide them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import marlflow as mf
from marlflow.env.games import cartpole_team

RANDOM_RETURN = 22.0


def team(env_steps: int, seed: int = 0, **policies: mf.Algorithm) -> mf.Experiment:
    """Four carts with a limit of 200 steps; of two policies each plays two of them, a single one plays all."""
    names = list(policies)
    rules = (mf.Rule("cart_0", names[0]), mf.Rule("cart_1", names[0]), mf.Rule("*", names[-1]))
    return mf.Experiment(
        mf.Env(cartpole_team.parallel_env, num_envs=8),
        policies={name: mf.Policy(algorithm) for name, algorithm in policies.items()},
        mapping=rules if len(names) > 1 else rules[-1:],
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=400),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=env_steps),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(every_env_steps=env_steps, console="none", tensorboard=False),
        seed=seed,
    )


FAST_PPO = mf.PPO(batch_agent_steps=1_600, epochs=8, minibatch_agent_steps=128, learning_rate=1e-3)
FAST_DQN = mf.DQN(
    learning_rate=1e-3,
    train_every_agent_steps=8,
    learning_starts_agent_steps=500,
    epsilon=mf.Linear(1.0, 0.05, 6_000),
    target_every_updates=100,
)


@pytest.mark.parametrize("algorithm", [pytest.param(FAST_PPO, id="ppo"), pytest.param(FAST_DQN, id="dqn")])
def test_each_algorithm_soon_leaves_chance_behind(algorithm: mf.Algorithm, tmp_path: Path) -> None:
    """Of 25 seeds each reached this within 17,000 env steps, on average after 11,000."""
    experiment = team(50_000, carts=algorithm)
    goal = mf.Stop(env_steps=50_000, policies={"carts": 2.5 * RANDOM_RETURN})
    result = mf.train(replace(experiment, stop=goal), tmp_path)
    assert result.stopped_by == "stop.policies.carts.return_mean=55"


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(5))
def test_both_learn_side_by_side_to_keep_poles_up(seed: int, tmp_path: Path) -> None:
    """At the same time, which ends the run: DQN may fall back from there."""
    goals = {"ppo": 150.0, "dqn": 150.0}
    experiment = team(200_000, seed, ppo=mf.PPO(batch_agent_steps=2_000), dqn=mf.DQN())
    result = mf.train(replace(experiment, stop=replace(experiment.stop, policies=goals)), tmp_path)
    for name, goal in goals.items():
        mean = result.metrics["policies"][name]["return_mean"]
        assert mean is not None
        assert mean >= goal, name
