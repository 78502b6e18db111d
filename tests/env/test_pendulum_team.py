"""The team is N of gymnasium's pendulums, and a PettingZoo environment in both forms."""

import numpy as np
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv

from marlflow.env.games import pendulum_team


def test_each_pendulum_moves_as_gymnasiums_does():
    env = pendulum_team.parallel_env(num_agents=2, max_cycles=30)
    observations, _ = env.reset(seed=3)
    alone = PendulumEnv()
    alone.reset()
    starts = np.random.default_rng(3).uniform([-np.pi, -1.0], [np.pi, 1.0], (2, 2))
    alone.state = starts[1]
    np.testing.assert_allclose(observations["pendulum_1"][2], starts[1, 1], rtol=1e-6)
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = {agent: rng.uniform(-2.5, 2.5, 1).astype(np.float32) for agent in env.agents}
        observations, rewards, _, _, _ = env.step(actions)
        expected, reward, _, _, _ = alone.step(actions["pendulum_1"])
        np.testing.assert_array_equal(observations["pendulum_1"], expected)
        assert rewards["pendulum_1"] == reward
    assert env.agents == []


def test_all_are_truncated_together_and_nobody_terminates():
    env = pendulum_team.parallel_env(num_agents=3, max_cycles=3)
    env.reset(seed=0)
    for cycle in range(3):
        assert len(env.agents) == 3
        actions = dict.fromkeys(env.agents, np.zeros(1, np.float32))
        _, _, terminations, truncations, _ = env.step(actions)
        assert truncations == dict.fromkeys(env.possible_agents, cycle == 2)
        assert terminations == dict.fromkeys(env.possible_agents, False)
    assert env.agents == []


def test_a_seed_fixes_the_episode_and_the_pendulums_differ():
    first, second = (pendulum_team.parallel_env().reset(seed=9)[0] for _ in range(2))
    for agent, observation in first.items():
        np.testing.assert_array_equal(observation, second[agent])
    assert len({observation.tobytes() for observation in first.values()}) == 4


@pytest.mark.parametrize("wrong", [{"num_agents": 0}, {"max_cycles": 0}, {"render_mode": "ansi"}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        pendulum_team.parallel_env(**wrong)
