"""A corridor with a sign that only a manager sees, for tests of two time scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.env.games.alike_agents import AlikeAgents

ENDS = 8


class SignCorridor(AlikeAgents):
    """One agent starts in the middle of a corridor, and gets 1 at one of its ends, at -8 or 8: a sign says which.

    The state has the sign (-1 or 1) in the first env step only, 0 later, and the position; the observation has the
    position and the time alone. Actions are a step to the left or to the right. The wrong end gives 0; both terminate.
    After `max_cycles` env steps the agent is truncated: 20 do not suffice for both ends, which takes 24.

    Without the sign, the best return is 0.5 in expectation; with a manager that sees the state it is 1.
    """

    metadata = {"name": "sign", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self, max_cycles: int = 20) -> None:
        if max_cycles < 1:
            raise ValueError(f"max_cycles must be at least 1, not {max_cycles}")
        super().__init__(["walker_0"], spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(2))
        self._max_cycles, self._t, self._at, self._sign = max_cycles, 0, 0, 1
        self._random = np.random.default_rng()
        self.state_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._t, self._at = list(self.possible_agents), 0, 0
        self._sign = 1 if self._random.random() < 0.5 else -1
        return {"walker_0": self._observation()}, {"walker_0": {}}

    def step(self, actions: dict[str, Any]) -> Any:
        self._t += 1
        self._at += 1 if int(actions["walker_0"]) else -1
        terminated = abs(self._at) == ENDS
        truncated = not terminated and self._t >= self._max_cycles
        reward = float(self._at == self._sign * ENDS)
        if terminated or truncated:
            self.agents = []
        seen = {"walker_0": self._observation()}
        return seen, {"walker_0": reward}, {"walker_0": terminated}, {"walker_0": truncated}, {"walker_0": {}}

    def state(self) -> Array:
        """Return the sign, 0 after the first env step, and the position."""
        return np.array([self._sign if self._t == 0 else 0, self._at / ENDS], np.float32)

    def _observation(self) -> Array:
        return np.array([self._at / ENDS, min(self._t / self._max_cycles, 1.0)], np.float32)


def reached(observation: Any, option: Any, following: Any) -> float:
    """Return the progress of a worker towards its option's end, an intrinsic reward; the sum over a way there is 1.

    Options are 0 and 1, for left and right, or Box(1,), of which the sign counts.
    """
    towards = 1.0 if float(np.ravel(option)[0]) > 0.0 else -1.0
    return towards * float(following[0] - observation[0])


def parallel_env(max_cycles: int = 20) -> SignCorridor:
    """Make the corridor as a ParallelEnv; `max_cycles` is in env steps."""
    return SignCorridor(max_cycles)


def env(max_cycles: int = 20) -> AECEnv[str, Array, int | None]:
    """Make the corridor as an AECEnv."""
    return parallel_to_aec(SignCorridor(max_cycles))
