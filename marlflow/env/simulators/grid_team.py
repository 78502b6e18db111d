"""Teams of gymnasium on a grid, whose own pictures need a window, with pictures that need none.

`env.lbf` and `env.rware` are such teams.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.env.simulators.gymnasium_team import GymnasiumTeam, registered_env

_PICTURE = "rgb_array"
_CELL = 32
"""Pixels of a cell's side."""
_GROUND, _LINE, _TEXT = (245, 245, 240), (215, 215, 210), (255, 255, 255)
AGENT_COLORS = (0, 114, 178), (213, 94, 0), (0, 128, 95), (120, 94, 160), (90, 90, 90)


class GridPicture:
    """A picture of a grid, for things in its cells or between them; `margin`: pixels to the cell's border."""

    def __init__(self, rows: int, columns: int) -> None:
        from PIL import Image, ImageDraw  # late: only pictures need it

        self._image = Image.new("RGB", (columns * _CELL + 1, rows * _CELL + 1), _GROUND)
        self._draw = ImageDraw.Draw(self._image)
        for at in range(max(rows, columns) + 1):
            self._draw.line((0, at * _CELL, columns * _CELL, at * _CELL), _LINE)
            self._draw.line((at * _CELL, 0, at * _CELL, rows * _CELL), _LINE)

    def square(self, row: float, column: float, color: tuple[int, int, int], margin: int = 3) -> None:
        """Draw a square with round corners."""
        self._draw.rounded_rectangle(_inside(row, column, margin), 6, color)

    def disc(self, row: float, column: float, color: tuple[int, int, int], margin: int = 3) -> None:
        """Draw a disc."""
        self._draw.ellipse(_inside(row, column, margin), color)

    def text(self, row: float, column: float, text: object) -> None:
        """Write into a cell."""
        middle = (column + 0.5) * _CELL, (row + 0.5) * _CELL
        self._draw.text(middle, str(text), fill=_TEXT, anchor="mm", font_size=16)

    def array(self) -> Any:
        """Return the picture, uint8 [height, width, 3]."""
        return np.asarray(self._image)


def _inside(row: float, column: float, margin: int) -> tuple[float, float, float, float]:
    left, top = column * _CELL, row * _CELL
    return left + margin, top + margin, left + _CELL - margin, top + _CELL - margin


class GridTeam(GymnasiumTeam):
    """The registered environment `id` with `arguments`, all of whose agents end at once.

    Its mode `rgb_array` shows what a subclass draws; its state is all agents' observations, side by side.
    """

    def __init__(self, id: str, arguments: Mapping[str, Any], max_cycles: int | None, render_mode: str | None) -> None:
        super().__init__(registered_env(id, arguments, None if render_mode == _PICTURE else render_mode), max_cycles)
        modes = dict.fromkeys([*self.metadata.get("render_modes", ()), _PICTURE])
        self.metadata = {**self.metadata, "render_modes": list(modes)}
        self.render_mode = render_mode
        width = sum(spaces.flatdim(self.observation_space(agent)) for agent in self.possible_agents)
        self.state_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self._seen: Mapping[str, Any] = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self._seen, infos = super().reset(seed, options)
        return self._seen, infos

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self._seen, *rest = super().step(actions)
        return self._seen, *rest

    def state(self) -> Array:
        agents = self.possible_agents
        rows: list[Any] = [spaces.flatten(self.observation_space(agent), self._seen[agent]) for agent in agents]
        return np.concatenate(rows).astype(np.float32)

    @abstractmethod
    def draw(self) -> GridPicture:
        """Return a picture of the state."""

    def render(self) -> Any:
        return self.draw().array() if self.render_mode == _PICTURE else super().render()
