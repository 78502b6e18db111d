"""Level-based foraging (LBF) as a Parallel environment: agents of different levels load food together.

Christianos et al., "Shared experience actor-critic for multi-agent reinforcement learning", 2020,
https://arxiv.org/abs/2006.07169. The package `lbforaging`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lbforaging  # noqa: F401  registers the environments
import numpy as np

from marlflow.env import gymnasium_team
from marlflow.env.gymnasium_team import GymnasiumTeam

# The game's own time limit terminates episodes, so values would not be bootstrapped; `max_cycles` truncates them.
_NEVER = 10**9
USUAL_ID = "Foraging-8x8-2p-3f-v3"
_PICTURE = "rgb_array"
_CELL = 32
"""Pixels of a cell's side."""
_GROUND, _LINE, _FOOD, _TEXT = (245, 245, 240), (215, 215, 210), (200, 30, 45), (255, 255, 255)
_AGENTS = (0, 114, 178), (213, 94, 0), (0, 128, 95), (120, 94, 160), (90, 90, 90)


class ForagingTeam(GymnasiumTeam):
    """A game of lbforaging, whose own pictures need a window; the mode `rgb_array` draws one without."""

    def __init__(self, env: Any, max_cycles: int | None, render_mode: str | None) -> None:
        super().__init__(env, max_cycles)
        self.metadata = {**self.metadata, "render_modes": [*self.metadata.get("render_modes", ()), _PICTURE]}
        self.render_mode = render_mode

    def render(self) -> Any:
        """Return a picture of the field, uint8 [height, width, 3]: round foods and square agents, with their levels."""
        if self.render_mode != _PICTURE:
            return super().render()
        from PIL import Image, ImageDraw  # late: only pictures need it

        rows, columns = self.game.field.shape
        image = Image.new("RGB", (columns * _CELL + 1, rows * _CELL + 1), _GROUND)
        draw = ImageDraw.Draw(image)
        for at in range(max(rows, columns) + 1):
            draw.line((0, at * _CELL, columns * _CELL, at * _CELL), _LINE)
            draw.line((at * _CELL, 0, at * _CELL, rows * _CELL), _LINE)
        for row, column in np.argwhere(self.game.field):
            draw.ellipse(_inside(row, column), _FOOD)
            _write(draw, row, column, self.game.field[row, column])
        for number, player in enumerate(self.game.players):
            row, column = player.position
            draw.rounded_rectangle(_inside(row, column), 6, _AGENTS[number % len(_AGENTS)])
            _write(draw, row, column, player.level)
        return np.asarray(image)


def _inside(row: int, column: int) -> tuple[int, int, int, int]:
    left, top = column * _CELL, row * _CELL
    return left + 3, top + 3, left + _CELL - 3, top + _CELL - 3


def _write(draw: Any, row: int, column: int, level: int) -> None:
    middle = (column + 0.5) * _CELL, (row + 0.5) * _CELL
    draw.text(middle, str(level), fill=_TEXT, anchor="mm", font_size=16)


def parallel_env(
    id: str = USUAL_ID,
    max_cycles: int = 50,
    arguments: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
) -> ForagingTeam:
    """Make the game `id`, truncated after `max_cycles` env steps; `arguments` are those of its class."""
    given = {"max_episode_steps": _NEVER, **(arguments or {})}
    env = gymnasium_team.registered_env(id, given, None if render_mode == _PICTURE else render_mode)
    return ForagingTeam(env, max_cycles, render_mode)
