from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.base.errors import EnvironmentFailed
from marlflow.env import open_adapter
from tests.env.test_adapter import Scripted

NOBODY = {"a": False, "b": False}
STEP = (["a", "b"], {"a": 0.0, "b": 0.0}, NOBODY, NOBODY)
LAST = ([], {"a": 0.0, "b": 0.0}, {"a": True, "b": True}, NOBODY)


class Stateful(Scripted):
    asked = 0

    def state(self):
        self.asked += 1
        return self.made(self.t)

    def made(self, t):
        return np.array([t, -t], np.float32)


def opened(made, **attributes):
    env = Stateful([STEP, STEP, LAST])
    env.made = made
    for name, value in attributes.items():
        setattr(env, name, value)
    return open_adapter(env, env_index=3)


def test_the_state_is_that_of_the_moment_until_the_final_one():
    adapter = open_adapter(Stateful([STEP, STEP, LAST]))
    adapter.reset(0)
    seen = [adapter.state()]
    for _ in range(3):
        turn = adapter.act([0, 0])
        seen.append(adapter.state())
    assert turn.over
    np.testing.assert_array_equal(seen, [[0, 0], [1, -1], [2, -2], [3, -3]])


def test_nobody_asks_for_the_state_unless_it_is_wanted():
    env = Stateful([STEP, LAST])
    adapter = open_adapter(env)
    adapter.reset(0)
    adapter.act([0, 0])
    assert env.asked == 0


@pytest.mark.parametrize(
    ("state", "space"),
    [
        (np.zeros((2, 3), np.float32), spaces.Box(-np.inf, np.inf, (2, 3), np.float32)),
        (np.zeros(4), spaces.Box(-np.inf, np.inf, (4,), np.float32)),
        (np.zeros((5, 5, 3), np.uint8), spaces.Box(0, 255, (5, 5, 3), np.uint8)),
        (np.zeros(2, bool), spaces.Box(0, 1, (2,), np.uint8)),
        ([0.5, 1.5], spaces.Box(-np.inf, np.inf, (2,), np.float32)),
    ],
)
def test_an_undeclared_space_is_found_by_a_trial(state, space):
    adapter = opened(lambda _: state)
    assert adapter.state_space() == space
    adapter.reset(0)
    assert space.contains(adapter.state())


def test_a_declared_spaces_floats_are_float32_and_its_bounds_are_not_asked_for():
    declared = spaces.Box(-9, 9, (2,), np.float64)
    adapter = opened(lambda t: np.array([t, 0.5]), state_space=declared)
    assert adapter.state_space() == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    adapter.reset(0)
    adapter.act([0, 0])
    state = adapter.state()
    assert state.dtype == np.float32
    assert state.tolist() == [1, 0.5]


def test_a_declared_space_that_is_no_box_gives_way_to_the_trial():
    adapter = opened(lambda _: np.zeros(2, np.float32), state_space=spaces.Discrete(3))
    assert adapter.state_space() == spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_an_environment_without_state_says_so_by_none():
    adapter = open_adapter(Scripted([STEP]))
    adapter.reset(0)
    assert adapter.state_space() is None
    with pytest.raises(EnvironmentFailed, match=r"has no state\(\)"):
        adapter.state()


def test_a_state_space_alone_is_no_state():
    class Declares(Scripted):
        state_space = spaces.Box(-1, 1, (2,))

    assert open_adapter(Declares([STEP])).state_space() is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (np.zeros(3, np.float32), r"the state has shape \(3,\), not \(2,\)"),
        (np.array([0, np.nan], np.float32), "the state has a NaN"),
        (np.zeros(2, np.complex64), "complex64 instead of numbers"),
        (None, "object instead of numbers"),
    ],
)
def test_a_state_of_another_kind_is_an_error(wrong, reason):
    adapter = opened(lambda t: np.zeros(2, np.float32) if t < 2 else wrong)
    adapter.reset(5)
    adapter.act([0, 0])
    assert adapter.state().shape == (2,)
    adapter.act([0, 0])
    with pytest.raises(EnvironmentFailed, match=reason) as caught:
        adapter.state()
    assert caught.value.where == "environment scripted, env 3, episode seed 5, env step 2"


def test_fractions_do_not_pass_for_declared_whole_numbers():
    adapter = opened(lambda t: np.array([t, 0.5]), state_space=spaces.Box(0, 9, (2,), np.int64))
    adapter.reset(0)
    with pytest.raises(EnvironmentFailed, match=r"the state has 0\.5"):
        adapter.state()


def test_a_state_too_large_for_its_dtype_does_not_wrap():
    adapter = opened(lambda t: np.array([t, 300], np.uint16), state_space=spaces.Box(0, 255, (2,), np.uint8))
    adapter.reset(0)
    with pytest.raises(EnvironmentFailed, match="the state has 300"):
        adapter.state()


def test_an_exception_in_state_says_where_and_shows_only_the_environments_frames():
    def broken(_):
        raise ZeroDivisionError("no wheels")

    adapter = opened(broken)
    adapter.reset(7)
    with pytest.raises(EnvironmentFailed) as caught:
        adapter.state_space()
    assert caught.value.reason == "state() raised ZeroDivisionError: no wheels"
    assert caught.value.where == "environment scripted, env 3, episode seed 7, env step 0"
    assert "in broken" in caught.value.user_traceback
    assert "in _called" not in caught.value.user_traceback


def test_an_aec_environments_state_is_read_through_its_wrappers():
    simple_spread = pytest.importorskip("mpe2.simple_spread_v3")
    adapter = open_adapter(simple_spread.env(N=2, max_cycles=3))
    assert adapter.state_space() == simple_spread.env(N=2).state_space
    turn = adapter.reset(0)
    seen = []
    while not turn.over:
        seen.append(adapter.state())
        turn = adapter.act([1])
    # Both agents of a cycle decide in the same state.
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(seen[1], seen[2])
    assert adapter.state().shape == adapter.state_space().shape


def test_the_state_comes_through_pettingzoos_conversion():
    env = Stateful([STEP, LAST])
    env.render_mode = None
    adapter = open_adapter(parallel_to_aec(env))
    adapter.reset(0)
    adapter.act([0])
    adapter.act([0])
    assert adapter.state().tolist() == [1, -1]
