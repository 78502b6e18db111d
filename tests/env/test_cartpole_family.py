"""Every task has physics of its own, which no observation shows and the seed does not change."""

import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from marlflow.env.games import cartpole_family
from marlflow.env.games.cartpole_family import draw_task


def test_the_carts_move_as_gymnasiums_with_the_physics_of_their_task():
    env = cartpole_family.parallel_env(num_agents=2)
    env.reset(seed=3, options={"task": 17})
    task = draw_task(17)
    alone = CartPoleEnv()
    alone.reset()
    alone.state = np.random.default_rng(3).uniform(-0.05, 0.05, 4)
    alone.length, alone.masspole, alone.force_mag = task.half_length, task.pole_mass, abs(task.force)
    alone.total_mass, alone.polemass_length = 1.0 + task.pole_mass, task.pole_mass * task.half_length
    for t in range(20):
        action = t % 2
        observations, *_ = env.step(dict.fromkeys(env.agents, action))
        expected, *_ = alone.step(action if task.force > 0.0 else 1 - action)
        np.testing.assert_array_equal(observations["cart_0"], expected)


def test_where_the_poles_begin_depends_on_the_seed_and_the_task_on_its_number():
    env, again = cartpole_family.parallel_env(), cartpole_family.parallel_env()
    first, _ = env.reset(seed=1, options={"task": 5})
    second, _ = again.reset(seed=1, options={"task": 6})
    assert env.task != again.task
    for agent, observation in first.items():
        np.testing.assert_array_equal(observation, second[agent])
    again.reset(seed=2, options={"task": 5})
    assert env.task == again.task


def test_without_a_number_the_seed_draws_the_task():
    tasks = []
    for seed in (0, 0, 1, 2):
        env = cartpole_family.parallel_env()
        env.reset(seed=seed)
        tasks.append(env.task)
    assert tasks[0] == tasks[1]
    assert len(set(tasks)) == 3


def test_half_of_the_tasks_are_reversed_or_as_many_as_one_likes():
    forces = np.array([[draw_task(n, share).force for n in range(400)] for share in (0.0, 0.5, 1.0)])
    assert np.isin(np.sign(forces[0]), 1.0).all()
    assert 160 <= (forces[1] < 0.0).sum() <= 240
    assert np.isin(np.sign(forces[2]), -1.0).all()
    assert ((np.abs(forces) >= 8.0) & (np.abs(forces) <= 12.0)).all()
    with pytest.raises(ValueError, match="reversed_share"):
        cartpole_family.parallel_env(reversed_share=1.5)
