"""A conversation in which agents guess numbers token by token, for algorithms of utterances."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.env.games.alike_agents import AlikeAgents

SILENT, TOO_HIGH, TOO_LOW, RIGHT = range(4)
"""Replies: none yet, or what the last guess was."""


class GuessNumber(AlikeAgents):
    """Each agent guesses a number of its own, which is one of `letters` ** `length`, all as likely.

    An utterance is a guess: its letters, most significant first, one per env step. With `may_stop`, the action
    `letters` ends it early, and letters that were not said are 0. A scripted reply says whether the guess was too high
    or too low, and costs 1 if it was wrong. An agent terminates when it is right, or after `guesses` guesses.

    Observations are the `utterance` (0, or 1 + the token, for each place), and the `conversation`: for each guess its
    tokens likewise, and the reply. With the defaults, the best return is -1.625 in expectation (bisection), guessing at
    random gives -2.897, and the best without listening -2.75.
    """

    metadata = {"name": "guess_number", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(
        self, num_agents: int = 1, letters: int = 2, length: int = 3, guesses: int = 4, may_stop: bool = False
    ) -> None:
        if min(num_agents, length, guesses) < 1 or letters < 2:
            raise ValueError(
                f"num_agents={num_agents}, length={length} and guesses={guesses} must be at least 1, and "
                f"letters={letters} at least 2"
            )
        self._letters, self._length, self._guesses = letters, length, guesses
        tokens = letters + may_stop
        seen = spaces.Dict(
            {
                "conversation": spaces.MultiDiscrete(([tokens + 1] * length + [4]) * guesses),
                "utterance": spaces.MultiDiscrete([tokens + 1] * length),
            }
        )
        super().__init__([f"guesser_{number}" for number in range(num_agents)], seen, spaces.Discrete(tokens))
        self._random = np.random.default_rng()
        self._secrets: dict[str, int] = {}
        self._said: dict[str, list[int]] = {}
        self._told: dict[str, list[int]] = {}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        drawn = self._random.integers(self._letters**self._length, size=len(self.agents))
        self._secrets = dict(zip(self.agents, drawn.tolist(), strict=True))
        self._said, self._told = {agent: [] for agent in self.agents}, {agent: [] for agent in self.agents}
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        before = list(self.agents)
        rewards = {agent: self._say(agent, int(actions[agent])) for agent in before}
        terminations = {agent: self._is_over(agent) for agent in before}
        self.agents = [agent for agent in before if not terminations[agent]]
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in before}
        return self._observations(before), rewards, terminations, dict.fromkeys(before, False), infos

    def _say(self, agent: str, token: int) -> float:
        said = self._said[agent]
        said.append(token)
        stops = token == self._letters
        if not stops and len(said) < self._length:
            return 0.0
        letters = [letter for letter in said if letter < self._letters]
        guess = 0
        for letter in letters + [0] * (self._length - len(letters)):
            guess = guess * self._letters + letter
        secret = self._secrets[agent]
        reply = RIGHT if guess == secret else TOO_HIGH if guess > secret else TOO_LOW
        self._told[agent] += [*self._shown(said), reply]
        said.clear()
        return 0.0 if reply == RIGHT else -1.0

    def _shown(self, said: list[int]) -> list[int]:
        return [token + 1 for token in said] + [0] * (self._length - len(said))

    def _is_over(self, agent: str) -> bool:
        told = self._told[agent]
        is_full = len(told) == self._guesses * (self._length + 1)
        return not self._said[agent] and bool(told) and (is_full or told[-1] == RIGHT)

    def _observations(self, agents: list[str]) -> dict[str, Any]:
        observations = {}
        for agent in agents:
            conversation = np.zeros(self._guesses * (self._length + 1), np.int64)
            conversation[: len(self._told[agent])] = self._told[agent]
            utterance = np.array(self._shown(self._said[agent]), np.int64)
            observations[agent] = {"conversation": conversation, "utterance": utterance}
        return observations


def parallel_env(
    num_agents: int = 1, letters: int = 2, length: int = 3, guesses: int = 4, may_stop: bool = False
) -> GuessNumber:
    """Make the game as a ParallelEnv."""
    return GuessNumber(num_agents, letters, length, guesses, may_stop)


def env(
    num_agents: int = 1, letters: int = 2, length: int = 3, guesses: int = 4, may_stop: bool = False
) -> AECEnv[str, Any, int | None]:
    """Make the game as an AECEnv."""
    return parallel_to_aec(GuessNumber(num_agents, letters, length, guesses, may_stop))
