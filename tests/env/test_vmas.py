"""Scenarios of VMAS step as in VMAS itself, and each environment's episode is its own."""

import numpy as np
import pytest

pytest.importorskip("vmas", reason="VMAS is not installed: pip install 'marlflow[vmas]'")

import torch
import vmas
from gymnasium import spaces

import marlflow as mf
from marlflow.env.batched.vmas import VmasEnv

EVERY = np.arange(4)


def actions_of(env, random):
    chosen = {}
    for name, agents in env.groups.items():
        space = env.action_space(agents[0])
        shape = (env.num_envs, len(agents), *space.shape)
        if isinstance(space, spaces.Discrete):
            chosen[name] = random.integers(0, space.n, shape)
        else:
            chosen[name] = random.uniform(space.low, space.high, shape).astype(np.float32)
    return chosen


def columns(step, at):
    """Every number of the environments `at`."""
    kinds = (step.observations, step.rewards, step.terminated, step.truncated)
    return [np.asarray(kind[name])[at] for kind in kinds for name in sorted(kind)]


def assert_same(ours, theirs, **tolerance):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, **{"rtol": 0.0, "atol": 0.0, **tolerance})


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("scenario", ["balance", "navigation", "simple_tag"])
def test_steps_are_those_of_vmas(scenario, continuous):
    env = VmasEnv(4, scenario, continuous_actions=continuous, episode_seeds=True)
    assert isinstance(env, mf.BatchedEnv)
    assert isinstance(env, mf.SnapshotEnv)
    direct = vmas.make_env(scenario, 4, max_steps=100, continuous_actions=continuous, terminated_truncated=True)
    seeds = np.array([5, 6, 7, 8])
    env.reset(EVERY, seeds)
    for index, seed in enumerate(seeds.tolist()):
        direct.seed(seed)
        direct.reset_at(index)
    random = np.random.default_rng(0)
    place = {agent: (name, at) for name, agents in env.groups.items() for at, agent in enumerate(agents)}
    for _ in range(5):
        actions = actions_of(env, random)
        step = env.step(actions)
        chosen = [torch.tensor(actions[name][:, at]) for name, at in map(place.get, env.possible_agents)]
        observations, rewards, terminated, truncated, _ = direct.step(chosen)
        for number, agent in enumerate(env.possible_agents):
            name, at = place[agent]
            np.testing.assert_array_equal(step.observations[name][:, at], observations[number])
            np.testing.assert_array_equal(step.rewards[name][:, at], rewards[number])
            np.testing.assert_array_equal(step.terminated[name][:, at], terminated)
            np.testing.assert_array_equal(step.truncated[name][:, at], truncated)
        np.testing.assert_array_equal(env.state(), torch.cat(observations, dim=1))


# simple_adversary has one goal for all environments, unless they are reset one by one.
@pytest.mark.parametrize("scenario", ["balance", "navigation", "transport", "simple_adversary"])
def test_a_reset_leaves_the_other_environments_alone(scenario):
    env, undisturbed = VmasEnv(4, scenario), VmasEnv(4, scenario)
    random = np.random.default_rng(1)
    for one in (env, undisturbed):
        one.reset(EVERY, np.array([1, 2, 3, 4]))
    for number in range(8):
        actions = actions_of(env, random)
        step, other = env.step(actions), undisturbed.step(actions)
        assert_same(columns(step, [0, 2]), columns(other, [0, 2]))
        if number in (2, 5):
            env.reset(np.array([1, 3]), np.array([number, 10 + number]))
    assert not np.array_equal(columns(step, [1])[0], columns(other, [1])[0])


def test_the_start_of_episodes_depends_on_the_seeds_only():
    first, later = VmasEnv(4), VmasEnv(4)
    later.reset(EVERY, np.array([9, 8, 7, 6]))
    later.step(actions_of(later, np.random.default_rng(2)))
    at, seeds = np.array([0, 2]), np.array([5, 6])
    first.reset(EVERY, np.array([1, 2, 3, 4]))
    assert_same(columns(first.reset(at, seeds), at), columns(later.reset(at, seeds), at))
    others = columns(later.reset(at, seeds + 1), at)
    assert not np.array_equal(columns(first.reset(at, seeds), at)[0], others[0])
    assert first.metadata["reproducible"] is False


def test_with_episode_seeds_an_episode_is_the_same_in_any_batch():
    one, many = VmasEnv(1, episode_seeds=True), VmasEnv(4, episode_seeds=True)
    assert many.metadata["reproducible"] is True
    alone = [one.reset(np.array([0]), np.array([7]))]
    among = [many.reset(EVERY, np.array([1, 2, 7, 3]))]
    random = np.random.default_rng(3)
    for _ in range(5):
        actions = actions_of(many, random)
        among.append(many.step(actions))
        alone.append(one.step({name: chosen[2:3] for name, chosen in actions.items()}))
    for ours, theirs in zip(among, alone, strict=True):
        # torch rounds the last numbers of a tensor otherwise than those it computes eight at a time.
        assert_same(columns(ours, [2]), columns(theirs, [0]), atol=1e-4)


def test_the_limit_truncates_and_a_fall_terminates():
    env = VmasEnv(4, "balance", max_env_steps=60)
    env.reset(EVERY, np.array([1, 2, 3, 4]))
    random, over = np.random.default_rng(4), np.zeros(4, bool)
    for number in range(1, 61):
        step = env.step(actions_of(env, random))
        terminated, truncated = step.terminated["agent"], step.truncated["agent"]
        assert (truncated == (number == 60)).all()
        # VMAS's own rule of this scenario: the line or the package is on the ground, or the package at its goal.
        ended = env._env.scenario.done().numpy()
        np.testing.assert_array_equal(terminated, np.repeat(ended[:, None], 3, axis=1))
        over |= ended
    assert over.any()


def test_a_snapshot_goes_on_in_another_batch():
    env, other = VmasEnv(4, "navigation"), VmasEnv(6, "navigation")
    env.reset(EVERY, np.array([1, 2, 3, 4]))
    random = np.random.default_rng(5)
    for _ in range(3):
        before = env.step(actions_of(env, random))
    saved = env.get_state(np.array([3, 1]))
    shown = other.set_state(np.array([0, 5]), saved)
    assert_same([shown.observations["agent"][[0, 5]]], [before.observations["agent"][[3, 1]]], atol=1e-5)
    for _ in range(5):
        actions = actions_of(other, random)
        theirs = {name: np.zeros_like(chosen[:4]) for name, chosen in actions.items()}
        theirs["agent"][[3, 1]] = actions["agent"][[0, 5]]
        assert_same(columns(other.step(actions), [0, 5]), columns(env.step(theirs), [3, 1]), atol=1e-4)


def test_agents_with_other_spaces_are_other_groups():
    env = VmasEnv(2, "simple_world_comm")
    for agents in env.groups.values():
        alike = {(str(env.observation_space(agent)), str(env.action_space(agent))) for agent in agents}
        assert len(alike) == 1
    assert sorted(agent for agents in env.groups.values() for agent in agents) == sorted(env.possible_agents)
    assert env.groups["adversary"] == ["adversary_1", "adversary_2", "adversary_3"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"scenario": "balanc"}, "VMAS has no scenario 'balanc'; did you mean 'balance'"),
        ({"max_env_steps": 0}, "max_env_steps must be a whole number from 1"),
        ({"parameters": {"n_agnts": 4}}, "'n_agnts': 4} passed but not used by the scenario"),
    ],
)
def test_wrong_arguments_are_refused(arguments, expected):
    with pytest.raises(mf.ConfigInvalid, match=expected):
        VmasEnv(2, **arguments)
