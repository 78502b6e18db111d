"""The team is N of gymnasium's cart-poles, and a PettingZoo environment in both forms."""

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from marlflow.env.games import cartpole_team


def test_each_cart_moves_as_gymnasiums_does():
    env = cartpole_team.parallel_env(num_agents=2)
    observations, _ = env.reset(seed=3)
    alone = CartPoleEnv()
    alone.reset()
    alone.state = np.random.default_rng(3).uniform(-0.05, 0.05, 4)
    np.testing.assert_array_equal(observations["cart_0"], alone.state.astype(np.float32))
    for t in range(200):
        observations, rewards, terminations, _, _ = env.step(dict.fromkeys(env.agents, t % 2))
        expected, reward, fell, _, _ = alone.step(t % 2)
        np.testing.assert_array_equal(observations["cart_0"], expected)
        assert (rewards["cart_0"], terminations["cart_0"]) == (reward, fell)
        if fell:
            break
    assert fell


def test_without_velocities_a_cart_sees_position_and_angle():
    whole, blind = cartpole_team.parallel_env(), cartpole_team.parallel_env(velocities=False)
    seen, half_seen = whole.reset(seed=3)[0], blind.reset(seed=3)[0]
    while whole.agents:
        for agent, observation in seen.items():
            np.testing.assert_array_equal(half_seen[agent], observation[[0, 2]])
            assert half_seen[agent] in blind.observation_space(agent)
        actions = dict.fromkeys(whole.agents, 1)
        seen, half_seen = whole.step(actions)[0], blind.step(actions)[0]
    assert blind.agents == []


def test_a_fallen_pole_ends_its_own_agent_alone():
    env = cartpole_team.parallel_env()
    env.reset(seed=0)
    alive = [set(env.agents)]
    while env.agents:
        _, _, terminations, truncations, _ = env.step({agent: int(agent == "cart_0") for agent in env.agents})
        assert not any(truncations.values())
        alive.append(set(env.agents))
        assert alive[-2] - alive[-1] == {agent for agent, fell in terminations.items() if fell}
    assert len({frozenset(agents) for agents in alive}) > 2


def test_who_still_stands_at_the_end_is_truncated():
    env = cartpole_team.parallel_env(max_cycles=3)
    env.reset(seed=0)
    for _ in range(3):
        _, _, terminations, truncations, _ = env.step(dict.fromkeys(env.agents, 0))
    assert env.agents == []
    assert truncations == dict.fromkeys(env.possible_agents, True)
    assert terminations == dict.fromkeys(env.possible_agents, False)


def test_a_seed_fixes_the_episode_and_the_carts_differ():
    first, second = (cartpole_team.parallel_env().reset(seed=9)[0] for _ in range(2))
    for agent, observation in first.items():
        np.testing.assert_array_equal(observation, second[agent])
    assert len({observation.tobytes() for observation in first.values()}) == 4


@pytest.mark.parametrize("wrong", [{"num_agents": 0}, {"max_cycles": 0}, {"render_mode": "ansi"}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cartpole_team.parallel_env(**wrong)
