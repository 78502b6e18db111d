"""Slippery grids with labelled cells, for tasks that are automata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.env.games.alike_agents import AlikeAgents

# Right, up, left, down, stay.
MOVES = ((0, 1), (-1, 0), (0, -1), (1, 0), (0, 0))
LABELS = {"1": "goal1", "2": "goal2", "x": "unsafe"}
CORRIDOR = ("1..S..2",)
GRID = (
    "S.........",
    "..........",
    "......xx..",
    "......xx..",
    "....11....",
    "....11....",
    "..xx......",
    "..xx......",
    "22........",
    "22........",
)
LAYOUTS: Mapping[str, Sequence[str]] = {"corridor": CORRIDOR, "grid": GRID}


class SlipperyGrid(AlikeAgents):
    """Agents walk on grids of their own, whose cells have labels: goal1, goal2, unsafe.

    With probability `slip`, a random action is taken instead, as in LCRL (Hasanbeig et al., 2022, arXiv:2209.10341).
    Layouts: `corridor`, seven cells with a goal at each end and the start in the middle; `grid`, 10 x 10 cells.
    Observations are the cell; rewards are 0, and tasks come from `wrappers=automaton` with `labels` of this module.
    Agents are truncated after `max_cycles` env steps.
    """

    metadata = {"name": "gridworld", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self, layout: str = "grid", slip: float = 0.15, max_cycles: int = 100, num_agents: int = 1) -> None:
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, not {layout!r}")
        if not 0.0 <= slip <= 1.0 or max_cycles < 1 or num_agents < 1:
            raise ValueError(f"slip={slip} must be from 0 to 1, max_cycles={max_cycles} and num_agents at least 1")
        self.rows = LAYOUTS[layout]
        agents = [f"walker_{number}" for number in range(num_agents)]
        cells = spaces.Discrete(len(self.rows) * len(self.rows[0]))
        super().__init__(agents, cells, spaces.Discrete(len(MOVES)))
        self._slip, self._max_cycles, self._t = slip, max_cycles, 0
        self._random = np.random.default_rng()
        self._cells: dict[str, tuple[int, int]] = {}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._t = list(self.possible_agents), 0
        self._cells = dict.fromkeys(self.agents, start_of(self.rows))
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        before, self._t = list(self.agents), self._t + 1
        for agent in before:
            slips = self._random.random() < self._slip
            action = int(self._random.integers(len(MOVES))) if slips else int(actions[agent])
            self._cells[agent] = moved(self.rows, self._cells[agent], action)
        is_over = self._t >= self._max_cycles
        if is_over:
            self.agents = []
        rewards, terminations = dict.fromkeys(before, 0.0), dict.fromkeys(before, False)
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in before}
        return self._observations(before), rewards, terminations, dict.fromkeys(before, is_over), infos

    def labels_of(self, agent: str) -> set[str]:
        """Return the labels of the agent's cell."""
        row, column = self._cells[agent]
        sign = self.rows[row][column]
        return {LABELS[sign]} if sign in LABELS else set()

    def _observations(self, agents: list[str]) -> dict[str, Any]:
        columns = len(self.rows[0])
        return {agent: np.int64(self._cells[agent][0] * columns + self._cells[agent][1]) for agent in agents}


def start_of(rows: Sequence[str]) -> tuple[int, int]:
    """Return the cell marked S."""
    return next((row, line.index("S")) for row, line in enumerate(rows) if "S" in line)


def moved(rows: Sequence[str], cell: tuple[int, int], action: int) -> tuple[int, int]:
    """Return the cell after a move, the same at the border."""
    row, column = cell[0] + MOVES[action][0], cell[1] + MOVES[action][1]
    return min(max(row, 0), len(rows) - 1), min(max(column, 0), len(rows[0]) - 1)


def labels(env: Any, agent: str) -> set[str]:
    """Return the labels of an agent's cell, for `wrappers=automaton env.wrappers.automaton.sees=env`."""
    names: set[str] = env.unwrapped.labels_of(agent)
    return names


def parallel_env(layout: str = "grid", slip: float = 0.15, max_cycles: int = 100, num_agents: int = 1) -> SlipperyGrid:
    """Make the grids as a ParallelEnv; `max_cycles` is in env steps."""
    return SlipperyGrid(layout, slip, max_cycles, num_agents)


def env(
    layout: str = "grid", slip: float = 0.15, max_cycles: int = 100, num_agents: int = 1
) -> AECEnv[str, Any, int | None]:
    """Make the grids as an AECEnv."""
    return parallel_to_aec(SlipperyGrid(layout, slip, max_cycles, num_agents))
