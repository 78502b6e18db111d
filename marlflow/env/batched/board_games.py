"""Connect four and tic-tac-toe on bitboards, B games at once: the numbers of PettingZoo's games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.env.batched.protocol import BatchedStep

_PLAYER = "player"
_ONE = np.uint64(1)


class BoardGame:
    """Two players put marks on a board in turn; the first to complete a line of its marks receives 1, the other -1.

    Observations are int8 [*board, 2]: the player's own marks and the opponent's. Seeds of episodes do not matter.
    A step raises ValueError if an action is illegal.
    """

    turn_based = True

    def __init__(
        self, num_envs: int, players: Sequence[str], name: str, board: tuple[int, ...], num_actions: int
    ) -> None:
        self.num_envs, self.metadata = num_envs, {"name": name}
        self.possible_agents = list(players)
        self.groups = {_PLAYER: list(players)}
        self._observation_space = spaces.Box(0, 1, (*board, 2), np.int8)
        self._action_space = spaces.Discrete(num_actions)
        self._most_moves = int(np.prod(board))
        # The marks of each player, a bit for each square.
        self._marks = np.zeros((num_envs, 2), np.uint64)
        self._moves = np.zeros(num_envs, np.int64)
        self._is_over = np.ones(num_envs, bool)
        # Changed square by square; the last dimension is whose marks they are, as each player sees them.
        self._observations = np.zeros((num_envs, 2, self._most_moves, 2), np.int8)
        self._legal = np.ones((num_envs, 2, num_actions), np.int8)

    def observation_space(self, agent: str) -> spaces.Box:
        del agent
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Discrete:
        del agent
        return self._action_space

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        del seeds
        self._marks[envs] = 0
        self._moves[envs] = 0
        self._is_over[envs] = False
        self._observations[envs] = 0
        self._legal[envs] = 1
        return self._step(np.zeros((self.num_envs, 2)), np.zeros((self.num_envs, 2), bool))

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        # Games that are over are not changed.
        games = np.flatnonzero(~self._is_over)
        players = self._moves[games] % 2
        chosen = actions[_PLAYER][games, players]
        illegal = self._legal[games, 0, chosen] == 0
        if illegal.any():
            raise ValueError(f"action {chosen[illegal][0]} is illegal in game {games[illegal][0]}; see action_masks")
        squares, bits = self._place(games, chosen)
        own = self._marks[games, players] | (_ONE << bits)
        self._marks[games, players] = own
        self._observations[games, 0, squares, players] = 1
        self._observations[games, 1, squares, 1 - players] = 1
        self._moves[games] += 1
        wins = self._has_line(own)
        self._is_over[games] = wins | (self._moves[games] == self._most_moves)
        rewards = np.zeros((self.num_envs, 2))
        rewards[games[wins], players[wins]] = 1.0
        rewards[games[wins], 1 - players[wins]] = -1.0
        return self._step(rewards, np.repeat(self._is_over[:, None], 2, axis=1))

    def _step(self, rewards: Array, terminated: Array) -> BatchedStep:
        shape = (self.num_envs, 2, *self._observation_space.shape)
        return BatchedStep(
            {_PLAYER: self._observations.reshape(shape)},
            {_PLAYER: rewards},
            {_PLAYER: terminated},
            {_PLAYER: np.zeros_like(terminated)},
            {_PLAYER: (self._moves % 2)[:, None] == np.arange(2)},
            {_PLAYER: self._legal},
        )

    def _place(self, games: Array, chosen: Array) -> tuple[Array, Array]:
        """Mark the moves as taken; return the squares in observations, and in `_marks`, uint64."""
        raise NotImplementedError

    def _has_line(self, marks: Array) -> Array:
        """Return which of `marks` [N] have a line, bool [N]."""
        raise NotImplementedError

    def get_state(self, envs: Array) -> dict[str, Array]:
        return {
            "marks": self._marks[envs],
            "moves": self._moves[envs],
            "seen": self._observations[envs, 0],
            "legal": self._legal[envs],
        }

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        self._marks[envs], self._moves[envs], self._legal[envs] = state["marks"], state["moves"], state["legal"]
        self._observations[envs, 0], self._observations[envs, 1] = state["seen"], state["seen"][..., ::-1]
        self._is_over[envs] = False
        return self._step(np.zeros((self.num_envs, 2)), np.zeros((self.num_envs, 2), bool))

    def close(self) -> None:
        """Do nothing."""


class ConnectFour(BoardGame):
    """Connect four: 6 rows, 7 columns; an action is a column, a line has four marks."""

    _ROWS, _COLUMNS = 6, 7
    # A column has seven bits, of which the highest is always 0, so that no line goes around the board.
    _STEPS: ClassVar = [np.uint64(step) for step in (1, 7, 6, 8)]

    def __init__(self, num_envs: int) -> None:
        players = ("player_0", "player_1")
        super().__init__(num_envs, players, "connect_four_v3", (self._ROWS, self._COLUMNS), self._COLUMNS)
        self._heights = np.zeros((num_envs, self._COLUMNS), np.int64)

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        self._heights[envs] = 0
        return super().reset(envs, seeds)

    def _place(self, games: Array, chosen: Array) -> tuple[Array, Array]:
        heights = self._heights[games, chosen]
        self._heights[games, chosen] = heights + 1
        full = heights + 1 == self._ROWS
        self._legal[games[full], :, chosen[full]] = 0
        squares = (self._ROWS - 1 - heights) * self._COLUMNS + chosen
        return squares, (chosen * (self._ROWS + 1) + heights).astype(np.uint64)

    def _has_line(self, marks: Array) -> Array:
        found = np.zeros(len(marks), np.uint64)
        for step in self._STEPS:
            two = marks & (marks >> step)
            found |= two & (two >> (step + step))
        has_line: Array = found != 0
        return has_line

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        taken = state["seen"].any(axis=2).reshape(-1, self._ROWS, self._COLUMNS)
        self._heights[envs] = taken.sum(axis=1)
        return super().set_state(envs, state)


class TicTacToe(BoardGame):
    """Tic-tac-toe: 3 x 3 squares, numbered by column as in PettingZoo; a line has three marks."""

    _LINES: ClassVar = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, ("player_1", "player_2"), "tictactoe_v3", (3, 3), 9)
        self._lines = np.array([sum(1 << square for square in line) for line in self._LINES], np.uint64)

    def _place(self, games: Array, chosen: Array) -> tuple[Array, Array]:
        self._legal[games, :, chosen] = 0
        return chosen, chosen.astype(np.uint64)

    def _has_line(self, marks: Array) -> Array:
        complete: Array = ((marks[:, None] & self._lines) == self._lines).any(axis=1)
        return complete
