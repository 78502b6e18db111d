"""Answers to benchmarks/composition_cases.py that are computed without training, and what controls leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.env.wrappers.wrapping import change_observations

# Right, up, left, down, stay.
_MOVES = ((0, 1), (-1, 0), (0, -1), (1, 0), (0, 0))


def without_state(env: Any) -> Any:
    """Remove the automaton's state from observations: what a policy without memory sees."""

    def space_of(agent: str) -> spaces.Space[Any]:
        whole: Any = env.observation_space(agent)
        inner: spaces.Space[Any] = whole["observation"]
        return inner

    return change_observations(env, lambda seen, _: seen["observation"], space_of)


def best_probability(rows: Sequence[str], slip: float, env_steps: int) -> float:
    """Return the largest probability of goal 1 and later goal 2 within `env_steps`, without an unsafe cell before.

    It is value iteration over cells and the automaton's state, from the start, marked S.
    """
    height, width = len(rows), len(rows[0])
    values = np.zeros((height, width, 2))

    def after(row: int, column: int, went: int) -> float:
        row, column = min(max(row, 0), height - 1), min(max(column, 0), width - 1)
        sign = rows[row][column]
        if sign == "x":
            return 0.0
        if went and sign == "2":
            return 1.0
        return float(values[row, column, 1 if went or sign == "1" else 0])

    for _ in range(env_steps):
        new = np.zeros_like(values)
        for row, column, went in np.ndindex(height, width, 2):
            outcomes = [after(row + down, column + right, went) for down, right in _MOVES]
            new[row, column, went] = (1 - slip) * max(outcomes) + slip * np.mean(outcomes)
        values = new
    start = next((row, line.index("S")) for row, line in enumerate(rows) if "S" in line)
    return float(values[*start, 0])
