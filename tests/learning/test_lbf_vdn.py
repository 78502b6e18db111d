"""VDN and QMIX where rewards are rare and small: level-based foraging with one food."""

from __future__ import annotations

from pathlib import Path

import pytest

import marlflow as mf
from marlflow.env.wrappers.shipped import last_action

pytest.importorskip("lbforaging")


@pytest.mark.learning
@pytest.mark.parametrize("algorithm", [mf.VDN, mf.QMIX])
def test_a_team_eats_the_food_although_its_first_values_could_hide_it(algorithm: type[mf.VDN], tmp_path: Path) -> None:
    """With values that began with a spread of 1, as DQN's do, play after 150,000 env steps was worse than at random."""
    env = mf.Env("lbf", {"id": "Foraging-5x5-2p-1f-v3"}, batched=True, num_envs=16)
    settings = {"mixer_sees": "observations"} if algorithm is mf.QMIX else {}
    learns = algorithm(team_reward="sum", **settings)
    experiment = mf.Experiment(
        env,
        policies={"agent": mf.Policy(learns, mf.MLP((128, 128)))},
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=800),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=100_000),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(console="none", tensorboard=False),
    )
    result = mf.train(experiment, tmp_path)
    # The whole food is 1; at random half of it is eaten, with exploration at the end nearly all.
    assert result.metrics["policies"]["agent"]["team_return_mean"] > 0.85


@pytest.mark.learning
def test_a_team_learns_where_rewards_are_hundredths_and_food_takes_several(tmp_path: Path) -> None:
    """Random play has 0.1. With a discount of 0.99 and rewards as they are, VDN had 0.11 after 2,000,000 env steps."""
    learns = mf.VDN(
        parts={"rewards": mf.RewardUnit()},
        discount=0.95,
        n_step=1,
        batch_agent_steps=1_536,
        train_every_agent_steps=48,
        target_every_updates=1,
        tau=0.02,
        epsilon=mf.Linear(1.0, 0.05, 300_000),
    )
    experiment = mf.Experiment(
        mf.Env("lbf", {"id": "Foraging-10x10-3p-3f-v3"}, batched=True, num_envs=16, wrappers=[last_action]),
        policies={"agent": mf.Policy(learns, mf.MLP((128, 128)))},
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=800),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(env_steps=200_000),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(console="none", tensorboard=False),
    )
    result = mf.train(experiment, tmp_path)
    assert result.metrics["policies"]["agent"]["team_return_mean"] > 0.17
