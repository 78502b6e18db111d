import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.policy.scripted import CallableActor, RandomActor, uniform_legal
from tests.policy.row_random import row_random

ROWS = 6_000


def obs(rows: int = ROWS) -> np.ndarray:
    return np.zeros((rows, 2), np.float32)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3).filter(any), min_size=1), st.integers(0, 99))
def test_uniform_legal_is_legal_and_the_naive_choice(masks: list[list[bool]], seed: int) -> None:
    uniform = np.random.default_rng(seed).random(len(masks))
    uniform[0] = 1.0 - 2.0**-53
    action, legal = uniform_legal(np.array(masks), uniform)
    for mask, chosen, count, u in zip(masks, action, legal, uniform, strict=True):
        choices = [a for a in range(3) if mask[a]]
        assert count == len(choices)
        assert chosen == choices[int(u * len(choices))]


def test_discrete_and_masked() -> None:
    actor = RandomActor(spaces.Discrete(3))
    acted = actor.act(obs(), None, None, "greedy", row_random(ROWS))
    np.testing.assert_allclose(np.bincount(acted.action) / ROWS, [1 / 3] * 3, atol=0.03)
    np.testing.assert_allclose(acted.behavior_logp, -np.log(3.0), rtol=1e-6)
    mask = np.tile([[True, False, True]], (ROWS, 1))
    acted = actor.act(obs(), mask, None, "explore", row_random(ROWS))
    np.testing.assert_allclose(np.bincount(acted.action) / ROWS, [0.5, 0.0, 0.5], atol=0.03)
    with pytest.raises(mf.MarlflowError, match="row 0 has no legal action"):
        actor.act(obs(1), np.zeros((1, 3), bool), None, "explore", row_random(1))


@pytest.mark.parametrize(
    "space",
    [spaces.MultiDiscrete([2, 5]), spaces.MultiBinary(3), spaces.Box(-1.0, 4.0, (2, 2)), spaces.Box(0.0, 1.0, ())],
)
def test_every_action_is_in_the_space(space: spaces.Space) -> None:
    acted = RandomActor(space).act(obs(50), None, "m", "explore", row_random(50))
    assert acted.action.shape == (50, *space.shape)
    assert all(space.contains(np.asarray(action, space.dtype)) for action in acted.action)
    assert acted.memory == "m"


@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 1, np.int8), (-2, 2, np.int64), (0, 1, np.bool_)])
def test_all_whole_numbers_of_a_box_are_equally_likely(low: int, high: int, dtype: type) -> None:
    space = spaces.Box(low, high, (1,), dtype)
    acted = RandomActor(space).act(obs(), None, None, "explore", row_random(ROWS))
    values = acted.action[:, 0].astype(dtype).astype(int)
    count = high - low + 1
    np.testing.assert_allclose(np.bincount(values - low, minlength=count) / ROWS, [1 / count] * count, atol=0.03)
    np.testing.assert_allclose(acted.behavior_logp, -np.log(count), rtol=1e-6)


def test_an_unbounded_box_is_refused() -> None:
    with pytest.raises(mf.ConfigInvalid, match="bounded Box"):
        RandomActor(spaces.Box(-np.inf, np.inf, (1,)))


def test_a_function_acts_and_is_checked() -> None:
    mask = np.array([[True, False], [True, True]])
    first = CallableActor(lambda obs, mask, generator: np.zeros(len(obs), np.int64))
    acted = first.act(obs(2), mask, None, "explore", row_random(2))
    assert acted.action.tolist() == [0, 0]
    assert np.isnan(acted.behavior_logp).all()
    with pytest.raises(mf.MarlflowError, match="illegal action 1 in row 0"):
        CallableActor(lambda obs, mask, generator: np.ones(len(obs), np.int64)).act(
            obs(2), mask, None, "explore", row_random(2)
        )
    for outside in (2, -1):
        with pytest.raises(mf.MarlflowError, match=f"illegal action {outside} in row 0"):
            CallableActor(lambda obs, mask, generator, of=outside: np.full(len(obs), of)).act(
                obs(2), ~np.zeros((2, 2), bool), None, "explore", row_random(2)
            )
    first_as_float = CallableActor(lambda obs, mask, generator: np.zeros(len(obs)), spaces.Discrete(2))
    assert first_as_float.act(obs(2), mask, None, "explore", row_random(2)).action.dtype == np.int64
    with pytest.raises(mf.MarlflowError, match="for 2 observations"):
        CallableActor(lambda obs, mask, generator: np.zeros(3)).act(obs(2), None, None, "explore", row_random(2))


PAIR = spaces.MultiDiscrete([3, 2])
UNIT = spaces.Box(-1.0, np.array([0.1, 1.0], np.float32), (2,))


@pytest.mark.parametrize(
    ("space", "row", "said"),
    [
        (PAIR, [7, 0], "action [7 0] in row 1, counted from 0, of MultiDiscrete"),
        (PAIR, [0, -1], "action [ 0 -1] in row 1, counted from 0"),
        (PAIR, [0.5, 0.0], "action [0.5 0. ] in row 1, which is no whole number, of MultiDiscrete"),
        (PAIR, [np.nan, 0.0], "which is no whole number"),
        (spaces.MultiBinary(2), [0, 2], "action [0 2] in row 1, counted from 0"),
        (spaces.Discrete(2, start=3), 3, "action 3 in row 1, counted from 0, of Discrete(2, start=3)"),
        (UNIT, [0.0, 50.0], "action [ 0. 50.] in row 1, of Box("),
        (UNIT, [np.nan, 0.0], "action [nan  0.] in row 1, of Box("),
        (UNIT, [0.2, 0.0], "action [0.2 0. ] in row 1"),
    ],
)
def test_what_is_no_action_of_the_space_is_refused(space: spaces.Space[Any], row: Any, said: str) -> None:
    actor = CallableActor(lambda obs, mask, generator: np.array([np.zeros_like(row), row]), space)
    with pytest.raises(mf.MarlflowError, match=re.escape(said)):
        actor.act(obs(2), None, None, "explore", row_random(2))


@pytest.mark.parametrize(
    ("space", "actions"),
    [(PAIR, [[2.0, 1.0]]), (spaces.MultiBinary(2), [[True, False]]), (UNIT, [[0.1, -1.0]]), (UNIT, [[0, 1]])],
)
def test_the_bounds_are_actions_of_the_space(space: spaces.Space[Any], actions: Any) -> None:
    actor = CallableActor(lambda obs, mask, generator: np.array(actions), space)
    action = actor.act(obs(1), None, None, "explore", row_random(1)).action
    assert action.astype(space.dtype)[0] in space


def test_text_and_other_shapes_are_refused() -> None:
    with pytest.raises(mf.MarlflowError, match=r"returned str32 for whole numbers, of Discrete\(2\)"):
        CallableActor(lambda *_: np.array(["0"]), spaces.Discrete(2)).act(obs(1), None, None, "explore", row_random(1))
    with pytest.raises(mf.MarlflowError, match=r"returned shape \(1, 3\) for 1 observations, of Box"):
        CallableActor(lambda *_: np.zeros((1, 3)), UNIT).act(obs(1), None, None, "explore", row_random(1))
