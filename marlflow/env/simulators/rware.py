"""The robotic warehouse (RWARE) as a Parallel environment: agents bring requested shelves to a station.

Papoudakis et al., "Benchmarking multi-agent deep reinforcement learning algorithms in cooperative tasks", 2021,
https://arxiv.org/abs/2006.07869. The package `rware`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rware  # noqa: F401  registers the environments

from marlflow.env.simulators.gymnasium_team import AGENT_COLORS, GridPicture, GridTeam

USUAL_ID = "rware-tiny-2ag-v2"
_GOAL, _SHELF, _REQUESTED, _EYE = (60, 60, 60), (185, 180, 210), (30, 170, 160), (255, 255, 255)
_HEADINGS = ((-0.2, 0.0), (0.2, 0.0), (0.0, -0.2), (0.0, 0.2))
"""Up, down, left and right, in cells."""


class WarehouseTeam(GridTeam):
    """A warehouse of rware."""

    def draw(self) -> GridPicture:
        """Return a picture: square shelves and goals, requested ones in teal, and round agents, wide with a load."""
        picture = GridPicture(*self.game.grid_size)
        for column, row in self.game.goals:
            picture.square(row, column, _GOAL, 1)
        for shelf in self.game.shelfs:
            picture.square(shelf.y, shelf.x, _REQUESTED if shelf in self.game.request_queue else _SHELF)
        for number, agent in enumerate(self.game.agents):
            picture.disc(agent.y, agent.x, AGENT_COLORS[number % len(AGENT_COLORS)], 4 if agent.carrying_shelf else 8)
            down, right = _HEADINGS[agent.dir.value]
            picture.disc(agent.y + down, agent.x + right, _EYE, 13)
        return picture


def parallel_env(
    id: str = USUAL_ID,
    max_cycles: int = 500,
    arguments: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
) -> WarehouseTeam:
    """Make the warehouse `id`, truncated after `max_cycles` env steps; `arguments` are arguments of its class."""
    # The warehouse's own time limit terminates episodes, so values would not be bootstrapped.
    return WarehouseTeam(id, {"max_steps": None, **(arguments or {})}, max_cycles, render_mode)
