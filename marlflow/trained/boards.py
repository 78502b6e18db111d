"""Shows an agent's observations and actions as text for a person; classic games of PettingZoo as boards.

An environment may provide the text itself, with a method `observation_text(agent)`, with `action_text(agent, action)`,
or with both, and with an attribute `moves_are_public`. Otherwise the classic games of PettingZoo are drawn from the
agent's observation, an environment with the render mode `ansi` renders itself, and any other is shown as numbers. A
text has nothing that only other agents know, unless `ansi` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marlflow.base.arrays import Array

_MOST_NUMBERS = 200


def innermost(env: Any) -> Any:
    """Return the environment inside all wrappers of PettingZoo; batches have none of these."""
    return getattr(env, "unwrapped", env)


class Board:
    """An environment as text: here, an agent's observation as numbers."""

    public = False
    """Whether each agent may know the moves of all others at once."""

    def __init__(self, env: Any) -> None:
        self.env, self.game = env, innermost(env)

    def text(self, agent: str, observation: Any) -> str:
        """Return the text that `agent` sees; `observation` is without its mask."""
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
    """An environment that has its own text for observations, its own names of actions, or both."""

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
    """Return how to show `env`, an environment of PettingZoo or a batch of one, as text."""
    game = innermost(env)
    rendered = RenderedBoard if getattr(env, "render_mode", None) == "ansi" else Board
    name = (getattr(env, "metadata", None) or {}).get("name")
    known = _ConnectFourOfPgx if name == "pgx_connect_four" else classic_board(type(game).__module__)
    board = (known or rendered)(env)
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


class _ClassicBoard(Board):
    signs = ("", "")
    """The signs of the first agent and of the second."""

    def seen(self, agent: str) -> Any:
        """Return the game's own observation of `agent`, because wrappers may change it for policies."""
        observation = self.game.observe(agent)
        return observation["observation"] if isinstance(observation, Mapping) else observation

    def sign(self, agent: str) -> str:
        """Return the sign of `agent`."""
        return self.signs[self.game.possible_agents.index(agent)]

    def cells(self, agent: str, planes: Array, empty: Sequence[Sequence[str]] | None = None) -> list[list[str]]:
        """Return the signs on a board, whose planes are the stones of `agent` and of its opponent."""
        mine = self.sign(agent)
        theirs = self.signs[mine == self.signs[0]]
        free = np.full(planes.shape[:2], ".") if empty is None else np.array(empty)
        drawn = np.where(planes[..., 0] > 0, mine, np.where(planes[..., 1] > 0, theirs, free))
        return [list(map(str, row)) for row in drawn.tolist()]

    def for_all(self) -> str:
        if not self.public:
            return ""
        # Without the first line, which says which stones belong to whom.
        return self.text(self.game.possible_agents[0], None).partition("\n")[2]


class _TicTacToe(_ClassicBoard):
    public, signs = True, ("X", "O")

    def text(self, agent: str, observation: Any) -> str:
        # The environment numbers the cells down the columns. A free cell shows the number of its action.
        numbers = [["0", "3", "6"], ["1", "4", "7"], ["2", "5", "8"]]
        return f"you are {self.sign(agent)}\n{grid(self.cells(agent, np.swapaxes(self.seen(agent), 0, 1), numbers))}"


class _ConnectFour(_ClassicBoard):
    public, signs = True, ("X", "O")

    def text(self, agent: str, observation: Any) -> str:
        return self.drawn(agent, self.seen(agent))

    def drawn(self, agent: str, planes: Array) -> str:
        """Return the board as `agent` sees it, from its observation."""
        cells = self.cells(agent, planes)
        return f"you are {self.sign(agent)}\n{grid(cells, columns=[str(column) for column in range(len(cells[0]))])}"


class _ConnectFourOfPgx(_ConnectFour):
    """Its observations equal PettingZoo's, but no method returns them at any time."""

    public = False

    def text(self, agent: str, observation: Any) -> str:
        return self.drawn(agent, np.asarray(observation))


_GO_COLUMNS = "ABCDEFGHJKLMNOPQRSTUVWXYZ"


class _Go(_ClassicBoard):
    public, signs = True, ("#", "o")

    def text(self, agent: str, observation: Any) -> str:
        # Drawn from the position itself, because the planes that agents observe swap colors with every move.
        signs = {0: ".", 1: "#", -1: "o"}
        cells = [[signs[stone] for stone in row] for row in self.game._go.board.tolist()]
        rows = [str(len(cells) - row) for row in range(len(cells))]
        return f"you are {self.sign(agent)} (# is black, o is white)\n{grid(cells, rows, _GO_COLUMNS[: len(cells)])}"

    def action(self, agent: str, action: int) -> str:
        size = self.game.observation_space(agent)["observation"].shape[0]
        row, column = divmod(action, size)
        return "pass" if row == size else f"{_GO_COLUMNS[column]}{size - row}"


class _Chess(_ClassicBoard):
    public, signs = True, ("white, the capital letters", "black, the small letters")

    def text(self, agent: str, observation: Any) -> str:
        cells = [row.split() for row in str(self.game.board).splitlines()]
        return f"you are {self.sign(agent)}\n{grid(cells, list('87654321'), 'abcdefgh')}"

    def action(self, agent: str, action: int) -> str:
        from pettingzoo.classic.chess import chess_utils

        player = self.game.possible_agents.index(agent)
        return str(chess_utils.action_to_move(self.game.board, action, player).uci())


class _Hanabi(_ClassicBoard):
    def text(self, agent: str, observation: Any) -> str:
        return str(self.game.hanabi_env.game_state.observation_string(self.game.possible_agents.index(agent)))

    def action(self, agent: str, action: int) -> str:
        state, player = self.game.hanabi_env.game_state, self.game.possible_agents.index(agent)
        return str(state.action_to_string(player, action)).strip("()")


class _RockPaperScissors(_ClassicBoard):
    names = ("rock", "paper", "scissors", "lizard", "Spock")

    def text(self, agent: str, observation: Any) -> str:
        last = int(self.seen(agent))
        if last >= self.game.action_space(agent).n:
            return "the first round"
        return f"your opponent's last choice: {self.action(agent, last) or last}"

    def action(self, agent: str, action: int) -> str:
        return self.names[action] if action < len(self.names) else ""


_SUITS, _RANKS = "SHDC", "A23456789TJQK"


class _Poker(_ClassicBoard):
    names: Sequence[str] = ("call", "raise", "fold", "check")

    def cards(self, observation: Array) -> str:
        """Return the cards in the first 52 places of `observation`."""
        cards = [f"{_RANKS[card % 13]}{_SUITS[card // 13]}" for card in np.flatnonzero(observation[:52])]
        return f"your cards and those on the table: {' '.join(cards)}"

    def action(self, agent: str, action: int) -> str:
        return self.names[action]


class _LimitTexasHoldem(_Poker):
    def text(self, agent: str, observation: Any) -> str:
        seen = self.seen(agent)
        raised = [str(number) for number in seen[52:72].reshape(4, 5).argmax(axis=1).tolist()]
        return f"{self.cards(seen)}\nraises in rounds 1 to 4: {' '.join(raised)}"


class _NoLimitTexasHoldem(_Poker):
    names = ("fold", "check or call", "raise half the pot", "raise the pot", "all in")

    def text(self, agent: str, observation: Any) -> str:
        seen = self.seen(agent)
        return (
            f"{self.cards(seen)}\nyour chips in the pot: {seen[52]:g}; the most that any player has in it: {seen[53]:g}"
        )


class _LeducHoldem(_Poker):
    def text(self, agent: str, observation: Any) -> str:
        seen = self.seen(agent)
        mine, chips, others = (int(seen[at : at + width].argmax()) for at, width in ((0, 3), (6, 15), (21, 15)))
        table = "JQK"[int(seen[3:6].argmax())] if seen[3:6].any() else "none yet"
        chips_of_both = f"chips in the pot: yours {chips}, your opponent's {others}"
        return f"your card: {'JQK'[mine]}; on the table: {table}\n{chips_of_both}"


# The longer one of two names comes first.
_BOARDS = {
    "tictactoe": _TicTacToe,
    "connect_four": _ConnectFour,
    "go": _Go,
    "chess": _Chess,
    "hanabi": _Hanabi,
    "rps": _RockPaperScissors,
    "rlcard_envs.leduc_holdem": _LeducHoldem,
    "rlcard_envs.texas_holdem_no_limit": _NoLimitTexasHoldem,
    "rlcard_envs.texas_holdem": _LimitTexasHoldem,
}


def classic_board(module: str) -> type[Board] | None:
    """Return how to show the game of this module as text; None if it is no classic game of PettingZoo."""
    name = module.removeprefix("pettingzoo.classic.")
    if name == module:
        return None
    return next((board for game, board in _BOARDS.items() if f"{name}.".startswith(f"{game}.")), None)
