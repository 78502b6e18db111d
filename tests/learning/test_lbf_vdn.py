"""VDN and QMIX where rewards are rare and small: level-based foraging with one food."""

from __future__ import annotations

from pathlib import Path

import pytest

import marlflow as mf

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
