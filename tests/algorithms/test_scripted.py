"""Policies that do not learn: they act legally, ask for nothing and refuse to be trained."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces, describe_space
from marlflow.learner.compute import ON_CPU
from tests.algorithms.parts import CONTINUOUS, DISCRETE, MASKED, NUM_ACTIONS, SMALL, experience, make_learner
from tests.policy.row_random import row_random
from tests.sentences import sentences


def last_legal(obs: Array, action_mask: Array | None, generator: mf.RowRandom) -> Array:
    assert action_mask is not None
    last: Array = NUM_ACTIONS - 1 - action_mask[:, ::-1].argmax(1)
    return last


@pytest.mark.parametrize("algorithm", [mf.Random(), mf.Scripted(last_legal)])
def test_they_take_part_without_learning(algorithm: mf.Algorithm) -> None:
    assert isinstance(algorithm, mf.Algorithm)
    assert (algorithm.capabilities.learns, algorithm.replay_shards) == (False, 0)
    for spaces in (DISCRETE, MASKED, CONTINUOUS):
        assert sentences(algorithm.validate(spaces, SMALL)) == []
    assert algorithm.schedules(10**6) == {}
    with pytest.raises(TypeError, match="'hunter' does not learn"):
        algorithm.learner("hunter", {"hunter": mf.Member(DISCRETE, SMALL)}, 0, ON_CPU)
    with pytest.raises(TypeError, match="'hunter' does not learn"):
        algorithm.replay("hunter", {}, 0)
    with pytest.raises(TypeError, match="has no plan"):
        algorithm.plan(mf.source(experience), make_learner(mf.PPO()), [])


@pytest.mark.parametrize("algorithm", [mf.Random(), mf.Scripted(last_legal)])
def test_actions_that_are_no_array_are_refused(algorithm: mf.Algorithm) -> None:
    for action in (gym.Tuple([gym.Discrete(2)]), gym.Dict(a=gym.Discrete(2)), gym.Text(3)):
        (problem,) = sentences(algorithm.validate(Spaces(DISCRETE.observation, action), SMALL))
        assert problem.startswith(
            f"{algorithm.name} cannot act in {describe_space(action)}; it needs Discrete, MultiDiscrete, MultiBinary "
            "or Box actions"
        )
    for taken in (gym.MultiDiscrete([[2, 3]]), gym.MultiBinary((2, 2)), gym.Box(0, 3, (2,), np.int64)):
        assert sentences(algorithm.validate(Spaces(DISCRETE.observation, taken), SMALL)) == []


def one_by_one(actor: mf.Actor, mask: Array, counters: int) -> Array:
    obs = np.zeros((len(mask), 2), np.float32)
    chosen = [
        actor.act(obs, mask, None, "explore", row_random(len(mask), counter)).action for counter in range(counters)
    ]
    return np.stack(chosen)


def test_random_is_uniform_over_the_legal_actions() -> None:
    mask = np.array([[True, False, True], [True, True, True], [False, True, False]])
    chosen = one_by_one(mf.Random().actor(MASKED, SMALL, 0), mask, 6_000)
    for row, legal in enumerate(mask):
        share = np.bincount(chosen[:, row], minlength=NUM_ACTIONS) / len(chosen)
        # Four standard deviations of a share of 6,000 draws.
        np.testing.assert_allclose(share, legal / legal.sum(), atol=4 * 0.5 / np.sqrt(6_000))
        assert not share[~legal].any()


def test_random_says_with_which_probability_it_chose() -> None:
    mask = np.array([[True, False, True], [True, True, True]])
    acted = mf.Random().actor(MASKED, SMALL, 0).act(np.zeros((2, 2), np.float32), mask, None, "greedy", row_random(2))
    np.testing.assert_allclose(acted.behavior_logp, np.log([1 / 2, 1 / 3]), rtol=1e-6)


def test_random_stays_inside_a_box() -> None:
    actor = mf.Random().actor(CONTINUOUS, SMALL, 0)
    obs = np.zeros((500, 2), np.float32)
    action = actor.act(obs, None, None, "explore", row_random(500)).action
    assert action.shape == (500, 2)
    assert np.abs(action).max() <= 1.0
    assert np.abs(action).max() > 0.95
    assert np.abs(action.mean(0)).max() < 4 / np.sqrt(3 * 500)


def test_a_users_function_is_asked_with_obs_mask_and_randomness() -> None:
    seen: list[tuple[Array, Array | None, int]] = []

    def choose(obs: Array, action_mask: Array | None, generator: mf.RowRandom) -> Array:
        seen.append((obs, action_mask, len(generator)))
        return last_legal(obs, action_mask, generator)

    mask = np.array([[True, True, False], [True, False, True]])
    obs = np.arange(4, dtype=np.float32).reshape(2, 2)
    acted = mf.Scripted(choose).actor(MASKED, SMALL, 0).act(obs, mask, "memory", "greedy", row_random(2))
    assert acted.action.tolist() == [1, 2]
    assert acted.memory == "memory"
    assert np.isnan(acted.behavior_logp).all()
    assert seen[0][0] is obs
    assert seen[0][1] is mask
    assert seen[0][2] == 2


def test_an_illegal_or_missing_choice_is_an_error() -> None:
    mask = np.array([[True, True, False], [True, False, True]])
    obs = np.zeros((2, 2), np.float32)
    zeros = mf.Scripted(lambda obs, mask, generator: np.array([0, 1])).actor(MASKED, SMALL, 0)
    with pytest.raises(mf.MarlflowError, match="chose illegal action 1 in row 1"):
        zeros.act(obs, mask, None, "explore", row_random(2))
    short = mf.Scripted(lambda obs, mask, generator: np.array([0])).actor(MASKED, SMALL, 0)
    with pytest.raises(mf.MarlflowError, match=r"returned shape \(1,\) for 2 observations"):
        short.act(obs, mask, None, "explore", row_random(2))


def test_a_function_that_takes_something_else_is_a_problem_and_one_that_raises_names_itself() -> None:
    def of_observations(obs):
        return obs

    (problem,) = mf.Scripted(of_observations).validate(MASKED, SMALL)
    assert "calls choose(obs, action_mask, generator), which " in str(problem)
    assert str(problem).endswith(".of_observations does not take")

    def raising(obs, action_mask, generator):
        return obs["x"]

    assert mf.Scripted(raising).validate(MASKED, SMALL) == []
    with pytest.raises(mf.UserCodeFailed, match=r"scripted policy .*\.raising: raised IndexError") as failed:
        mf.Scripted(raising).actor(MASKED, SMALL, 0).act(np.zeros((1, 2)), None, None, "explore", row_random(1))
    assert 'return obs["x"]' in failed.value.user_traceback
    assert "marlflow/policy/scripted.py" not in failed.value.user_traceback


def test_a_decorated_function_is_what_its_decorator_makes_of_it_and_a_partial_has_its_functions_name() -> None:
    def of_observations(function):
        @functools.wraps(function)
        def choose(obs, action_mask, generator):
            return function(obs)

        return choose

    @of_observations
    def rests(obs):
        return np.zeros(len(obs))

    assert mf.Scripted(rests).validate(DISCRETE, SMALL) == []

    def keyed(obs, action_mask, generator, key):
        return obs[key]

    partial = mf.Scripted(functools.partial(keyed, key="x"))
    assert partial.validate(DISCRETE, SMALL) == []
    with pytest.raises(mf.UserCodeFailed, match=r"scripted policy .*\.keyed: raised IndexError"):
        partial.actor(DISCRETE, SMALL, 0).act(np.zeros((1, 2)), None, None, "explore", row_random(1))
    (problem,) = mf.Scripted(functools.partial(keyed, 1, 2)).validate(DISCRETE, SMALL)
    assert "keyed does not take" in str(problem)
