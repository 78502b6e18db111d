"""Grids slip as they say, and the best probability of their task is that of value iteration."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from benchmarks.composition_answers import best_probability
from marlflow.env.games.gridworld import CORRIDOR, GRID, parallel_env


def test_a_walker_slips_to_each_neighbor_as_often_as_it_should() -> None:
    """With slip 0.5, up leads up in 0.5 + 0.1, and each other move is made in 0.1, of five."""
    env, cells = parallel_env(slip=0.5, max_cycles=10**6), Counter[int]()
    env.reset(seed=0)
    for _ in range(4_000):
        env._cells["walker_0"] = (5, 5)
        seen, *_ = env.step({"walker_0": 1})
        cells[int(seen["walker_0"])] += 1
    assert {cell: count / 4_000 for cell, count in cells.items()} == pytest.approx(
        {45: 0.6, 55: 0.1, 54: 0.1, 56: 0.1, 65: 0.1}, abs=0.03
    )


@pytest.mark.parametrize(("env_steps", "slip", "best"), [(8, 0.0, 0.0), (9, 0.0, 1.0), (12, 0.0, 1.0)])
def test_nine_steps_reach_both_ends_of_the_corridor(env_steps: int, slip: float, best: float) -> None:
    assert best_probability(CORRIDOR, slip, env_steps) == best


def test_the_best_probability_is_that_of_all_plans() -> None:
    """Held against every sequence of actions, where nothing slips, and a closed form, where every action does."""
    rows = ("2S1",)
    for env_steps in range(5):
        plans = product((1, -1), repeat=env_steps)
        reached = 0.0
        for plan in plans:
            at, went = 1, False
            for move in plan:
                at = min(max(at + move, 0), 2)
                went = went or at == 2
                if went and at == 0:
                    reached = 1.0
        assert best_probability(rows, 0.0, env_steps) == reached
    # Three steps: right, left, left, each drawn from five moves.
    assert best_probability(rows, 1.0, 3) == pytest.approx((1 / 5) ** 3)


def test_the_optimum_of_the_grid() -> None:
    assert best_probability(GRID, 0.15, 100) == pytest.approx(0.9953, abs=5e-5)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="layout must be one of corridor, grid, not 'maze'"):
        parallel_env("maze")
    with pytest.raises(ValueError, match=r"slip=1\.5 must be from 0 to 1"):
        parallel_env(slip=1.5)
