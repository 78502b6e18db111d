"""A gymnasium environment with Tuple spaces, whose agents differ: registered by importing this module."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

ID = "tests.env.tuple_game:TupleGame-v0"
LENGTHS = (2, 5, 5)


class TupleGame(gym.Env[Any, Any]):
    """Three agents see the step, noise, and their last action; agent i is paid (i + 1) * (step + 1).

    With `own_ends`, agent i ends after LENGTHS[i] steps: the first terminates, the others are truncated. `paid`: how
    rewards are given; `masked`: agents 0 and 1 may only take actions of the step's parity. `alike`: all have the same
    spaces.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def __init__(
        self,
        own_ends: bool = True,
        paid: str = "list",
        masked: bool = False,
        alike: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self._widths = (2, 2, 2) if alike else (2, 3, 4)
        self.observation_space = spaces.Tuple([spaces.Box(-10.0, 10.0, (width,), np.float32) for width in self._widths])
        last = spaces.MultiDiscrete([3, 2]) if masked else spaces.Box(1.0, 2.0, (2,), np.float32)
        self.action_space = spaces.Tuple((spaces.Discrete(4, start=1), spaces.Discrete(4), last))
        if alike:
            self.action_space = spaces.Tuple([spaces.Discrete(4) for _ in range(3)])
        self.render_mode, self._own_ends, self._paid, self._masked = render_mode, own_ends, paid, masked
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t, self.taken = 0, []
        return self._seen(), self._info()

    def _seen(self) -> tuple[np.ndarray, ...]:
        noise = self.np_random.uniform(-1.0, 1.0)
        return tuple(np.full(width, noise + self._t, np.float32) for width in self._widths)

    def _info(self) -> dict[str, Any]:
        if not self._masked:
            return {"t": self._t, "names": ["a", "b", "c"]}
        legal = np.arange(4) % 2 == self._t % 2
        return {"action_mask": [legal, legal, np.ones(5, bool)]}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert self.action_space.contains(action)
        if self._masked:
            assert (action[0] - 1) % 2 == action[1] % 2 == self._t % 2
        self.taken.append(action)
        self._t += 1
        rewards: Any = [float((number + 1) * self._t) for number in range(3)]
        rewards = rewards if self._paid == "list" else np.array(rewards) if self._paid == "array" else float(self._t)
        if not self._own_ends:
            return self._seen(), rewards, self._t >= 4, False, self._info()
        ends = [self._t >= length for length in LENGTHS]
        return self._seen(), rewards, [ends[0], False, False], (False, *ends[1:]), self._info()

    def render(self) -> str:
        return f"step {self._t}"


class NoTuple(TupleGame):
    """One agent's spaces."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Unequal(TupleGame):
    """Two actions for three agents."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Tuple(self.action_space.spaces[:2])


for made in (TupleGame, NoTuple, Unequal):
    if f"{made.__name__}-v0" not in gym.registry:
        gym.register(f"{made.__name__}-v0", entry_point=f"tests.env.tuple_game:{made.__name__}")
