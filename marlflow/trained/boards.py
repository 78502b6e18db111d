"""Shows what an agent observes, and its actions, as text for a person.

An environment may say it itself, with a method `observation_text(agent)`, with `action_text(agent, action)`, or with
both, and with an attribute `moves_are_public`. Otherwise the classic games of PettingZoo are drawn from what the agent
observes, an environment with the render mode `ansi` as it renders itself, and any other as numbers. A text has nothing
that only other agents know, unless `ansi` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_MOST_NUMBERS = 200


class Board:
    """An environment as text: here, what an agent observes as numbers."""

    public = False
    """Whether each agent may know the moves of all others at once."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.game = env.unwrapped

    def text(self, agent: str, observation: Any) -> str:
        """Return what `agent` sees; `observation` is without its mask."""
        if isinstance(observation, Mapping):
            return "\n".join(f"{key}: {self.text(agent, part)}" for key, part in observation.items())
        if isinstance(observation, tuple):
            return "\n".join(self.text(agent, part) for part in observation)
        numbers = np.asarray(observation)
        return np.array2string(numbers, precision=3, suppress_small=True, threshold=_MOST_NUMBERS, max_line_width=100)

    def action(self, agent: str, action: int) -> str:
        """Return the name of a Discrete action, as the environment takes it; empty if it has none."""
        return ""

    def for_all(self) -> str:
        """Return the part of the board that all players may see; empty if there is none."""
        return ""


class RenderedBoard(Board):
    """An environment that renders text; its actions have the names that `named` gives them."""

    def __init__(self, env: Any, named: Board | None = None) -> None:
        super().__init__(env)
        self._named = named

    def text(self, agent: str, observation: Any) -> str:
        return self.for_all()

    def action(self, agent: str, action: int) -> str:
        return "" if self._named is None else self._named.action(agent, action)

    def for_all(self) -> str:
        return str(self.env.render())


class OwnBoard(Board):
    """An environment that says itself what an agent observes, what its actions are called, or both."""

    def __init__(self, env: Any, otherwise: Board) -> None:
        super().__init__(env)
        self._otherwise = otherwise
        self.public = bool(getattr(self.game, "moves_are_public", otherwise.public))

    def text(self, agent: str, observation: Any) -> str:
        if hasattr(self.game, "observation_text"):
            return str(self.game.observation_text(agent))
        return self._otherwise.text(agent, observation)

    def action(self, agent: str, action: int) -> str:
        if hasattr(self.game, "action_text"):
            return str(self.game.action_text(agent, action))
        return self._otherwise.action(agent, action)

    def for_all(self) -> str:
        if hasattr(self.game, "observation_text"):
            return str(self.game.observation_text(self.game.possible_agents[0])) if self.public else ""
        return self._otherwise.for_all()


def board_of(env: Any) -> Board:
    """Return how to show `env`, an environment of PettingZoo, as text."""
    from marlflow.trained.classic_boards import classic_board

    game = env.unwrapped
    rendered = RenderedBoard if getattr(env, "render_mode", None) == "ansi" else Board
    board = (classic_board(type(game).__module__) or rendered)(env)
    if hasattr(game, "observation_text") or hasattr(game, "action_text"):
        return OwnBoard(env, board)
    return board


def grid(cells: Sequence[Sequence[str]], rows: Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """Draw a board of equally wide cells, with names of rows on the left and of columns below.

    >>> print(grid([["X", "."], [".", "O"]], ["2", "1"], ["a", "b"]))
    2  X  .
    1  .  O
       a  b
    """
    lines = [[*rows[number : number + 1], *line] for number, line in enumerate(cells)]
    if columns:
        lines.append([*([""] if rows else []), *columns])
    width = max(len(cell) for line in lines for cell in line)
    return "\n".join("  ".join(cell.rjust(width) for cell in line).rstrip() for line in lines)
