"""Level-based foraging (LBF) as a Parallel environment: agents of different levels load food together.

Christianos et al., "Shared experience actor-critic for multi-agent reinforcement learning", 2020,
https://arxiv.org/abs/2006.07169. The package `lbforaging`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lbforaging  # noqa: F401  registers the environments
import numpy as np

from marlflow.env.simulators.gymnasium_team import AGENT_COLORS, GridPicture, GridTeam

# The game's own time limit terminates episodes, so values would not be bootstrapped; `max_cycles` truncates them.
_NEVER = 10**9
USUAL_ID = "Foraging-8x8-2p-3f-v3"
_FOOD = (200, 30, 45)


class ForagingTeam(GridTeam):
    """A game of lbforaging."""

    def draw(self) -> GridPicture:
        """Return a picture of the field: round foods and square agents, with their levels."""
        picture = GridPicture(*self.game.field.shape)
        for row, column in np.argwhere(self.game.field):
            picture.disc(row, column, _FOOD)
            picture.text(row, column, self.game.field[row, column])
        for number, player in enumerate(self.game.players):
            row, column = player.position
            picture.square(row, column, AGENT_COLORS[number % len(AGENT_COLORS)])
            picture.text(row, column, player.level)
        return picture


def parallel_env(
    id: str = USUAL_ID,
    max_cycles: int = 50,
    arguments: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
) -> ForagingTeam:
    """Make the game `id`, truncated after `max_cycles` env steps; `arguments` are arguments of its class."""
    return ForagingTeam(id, {"max_episode_steps": _NEVER, **(arguments or {})}, max_cycles, render_mode)
