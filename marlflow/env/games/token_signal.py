"""A signaling game of tokens (Lewis, 1969): a speaker spells a message, token by token, and a listener reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

from marlflow.base.arrays import Array

SPEAKER, LISTENER = "speaker_0", "listener_0"


class TokenSignal(AECEnv[str, Array, int | None]):
    """The speaker sees one of `num_classes` classes and says `length` tokens of a vocabulary; the listener names it.

    Each token is one decision of the speaker; then the listener decides once, both get 1 if it is right, else 0, and
    terminate. So an episode has `length` + 1 env steps, and the rewards are on the last decision of each. Chance is
    1 / `num_classes`, the optimum 1, if there are enough messages.

    Observations are sequences of tokens, MultiDiscrete, in which 0 is padding: tokens that are not said yet. The token
    of action a is a + 1. The speaker sees the class as a token of its own, `vocabulary_size` + 1 + class, then the
    tokens that it has said; the listener sees these tokens only.
    """

    metadata = {"name": "token_signal_v0", "render_modes": [], "is_parallelizable": False}  # noqa: RUF012  (PettingZoo's)
    # Wrappers and conversions of PettingZoo warn without it.
    render_mode = None

    def __init__(self, num_classes: int = 8, vocabulary_size: int = 8, length: int = 4) -> None:
        super().__init__()
        if num_classes < 2 or vocabulary_size < 2 or length < 1:
            raise ValueError(
                "token_signal needs at least 2 classes, 2 tokens, and messages of 1 token, not "
                f"num_classes={num_classes}, vocabulary_size={vocabulary_size}, length={length}"
            )
        if vocabulary_size**length < num_classes:
            raise ValueError(
                f"messages of {length} of {vocabulary_size} tokens cannot tell {num_classes} classes apart; raise "
                "length or vocabulary_size"
            )
        self._num_classes, self._vocabulary_size, self._length = num_classes, vocabulary_size, length
        self.possible_agents = [SPEAKER, LISTENER]
        self.agents: list[str] = []
        self.observation_spaces = {
            SPEAKER: spaces.MultiDiscrete([1 + vocabulary_size + num_classes] * (1 + length)),
            LISTENER: spaces.MultiDiscrete([1 + vocabulary_size] * length),
        }
        self.action_spaces = {SPEAKER: spaces.Discrete(vocabulary_size), LISTENER: spaces.Discrete(num_classes)}
        self._random = np.random.default_rng()
        self._class, self._said = 0, np.zeros(length, np.int64)
        self._count = 0

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._class, self._count = int(self._random.integers(self._num_classes)), 0
        self._said = np.zeros(self._length, np.int64)
        self.agents, self.agent_selection = list(self.possible_agents), SPEAKER
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> Array:
        """Return the tokens that `agent` sees, int64."""
        if agent == LISTENER:
            return self._said.copy()
        return np.concatenate([[1 + self._vocabulary_size + self._class], self._said])

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        if action is None or not self.action_spaces[agent].contains(np.int64(action)):
            raise ValueError(f"{agent} acts in {self.action_spaces[agent]}, not by {action!r}")
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        if agent == SPEAKER:
            self._said[self._count] = action + 1
            self._count += 1
            self.agent_selection = SPEAKER if self._count < self._length else LISTENER
        else:
            self.rewards = dict.fromkeys(self.agents, float(action == self._class))
            self.terminations = dict.fromkeys(self.agents, True)
            self.agent_selection = SPEAKER
        self._accumulate_rewards()

    def render(self) -> None:
        """Draw nothing: there is no render mode."""

    def close(self) -> None:
        """Release nothing."""


def env(num_classes: int = 8, vocabulary_size: int = 8, length: int = 4) -> TokenSignal:
    """Make the game, an AECEnv: speaker and listener decide in turn."""
    return TokenSignal(num_classes, vocabulary_size, length)
