"""n-step windows against a literal table and a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marlflow.replay.buffer import windows


def test_a_table_of_three_steps_over_three_segments() -> None:
    reward = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    found = windows(reward, np.array([4, 1, 2]), np.array([True, False, False]), n_step=3, discount=0.5)

    # segment 0 (terminated)   1 + 2/2 + 4/4, 2 + 4/2 + 8/4, 4 + 8/2, 8;   segment 1: 16;   segment 2: 32 + 64/2, 64
    np.testing.assert_array_equal(found.reward, [3.0, 6.0, 8.0, 8.0, 16.0, 64.0, 64.0])
    np.testing.assert_array_equal(found.discount, [0.125, 0.0, 0.0, 0.0, 0.5, 0.25, 0.5])
    np.testing.assert_array_equal(found.steps, [3, 3, 2, 1, 1, 2, 1])


def test_one_step_is_the_reward_and_the_next_row() -> None:
    found = windows(np.array([1.0, 2.0, 3.0]), np.array([3]), np.array([True]), n_step=1, discount=0.9)

    np.testing.assert_array_equal(found.reward, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(found.discount, [0.9, 0.9, 0.0])
    np.testing.assert_array_equal(found.steps, [1, 1, 1])


def test_rewards_are_left_as_they_came() -> None:
    reward = np.array([1.0, 2.0, 3.0])
    windows(reward, np.array([3]), np.array([False]), n_step=3, discount=0.9)
    np.testing.assert_array_equal(reward, [1.0, 2.0, 3.0])


@given(
    segments=st.lists(st.tuples(st.lists(st.floats(-10, 10), min_size=1, max_size=9), st.booleans()), min_size=1),
    n_step=st.integers(1, 6),
    discount=st.floats(0, 1),
)
def test_windows_are_what_a_loop_finds(segments: list[tuple[list[float], bool]], n_step: int, discount: float) -> None:
    reward = np.array([r for rewards, _ in segments for r in rewards])
    length = np.array([len(rewards) for rewards, _ in segments])
    terminated = np.array([ended for _, ended in segments])
    found = windows(reward, length, terminated, n_step, discount)

    row = 0
    for rewards, ended in segments:
        for at in range(len(rewards)):
            total, steps = 0.0, 0
            while steps < n_step and at + steps < len(rewards):
                total += discount**steps * rewards[at + steps]
                steps += 1
            at_end = at + steps == len(rewards)
            np.testing.assert_allclose(found.reward[row], total, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(found.discount[row], 0.0 if at_end and ended else discount**steps, rtol=1e-12)
            assert found.steps[row] == steps
            row += 1
