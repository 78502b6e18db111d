"""Environments with something wrong, by import path."""

import threading
from bdb import BdbQuit
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from pettingzoo.utils import BaseWrapper

from marlflow.env.games.cartpole_team import CartPoleTeam, env


class NoMap(CartPoleTeam):
    """Cannot be reset."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise FileNotFoundError("no map 'arena'")


class WheelComesOff(CartPoleTeam):
    """Cannot be stepped for long."""

    def step(self, actions: dict[str, int]) -> Any:
        if self._cycles == 5:
            raise RuntimeError("the wheel came off")
        return super().step(actions)


class Torque(CartPoleTeam):
    """Takes a force instead of a direction."""

    def action_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (2,))


def three() -> int:
    """Makes no environment at all."""
    return 3


class GoesBlind(CartPoleTeam):
    """Shows a NaN."""

    def step(self, actions: dict[str, int]) -> Any:
        observations, *rest = super().step(actions)
        if self._cycles == 4:
            observations["cart_1"] = np.full(4, np.nan, np.float32)
        return observations, *rest


class Haunted(CartPoleTeam):
    """Has an agent that it never declared."""

    def step(self, actions: dict[str, int]) -> Any:
        stepped = super().step(actions)
        self.agents = [*self.agents, "ghost"]
        return stepped


class SeedOnly(CartPoleTeam):
    """Cannot be given options."""

    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed)


class Underpays(BaseWrapper[str, Any, Any]):
    """Tells of no reward what it issued."""

    def last(self, observe: bool = True) -> Any:
        observation, _, *rest = super().last(observe)
        return observation, 0.0, *rest


def underpays() -> Underpays:
    """An AEC environment whose `last` is at odds with its `rewards`."""
    return Underpays(env(num_agents=2))


class Stuck(CartPoleTeam):
    """Hangs, once 1,000 env steps have been made in this process."""

    made = 0

    def step(self, actions: dict[str, int]) -> Any:
        Stuck.made += 1
        if Stuck.made > 1_000:
            print("stuck", flush=True)  # noqa: T201  tells the test that waits for it
            threading.Event().wait()
        return super().step(actions)


class Endless(CartPoleTeam):
    """Its carts are put upright where they fall; ends after `ends_at` env steps, if ever."""

    def __init__(self, ends_at: float | None = None):
        super().__init__(max_cycles=ends_at or 10**9)

    def step(self, actions):
        for cart in self.carts:
            cart.state = np.zeros(4)
        return super().step(actions)


class Talks(CartPoleTeam):
    """Keeps all rules, and says something when it is made and at each step."""

    def __init__(self):
        super().__init__()
        print("on my way\n" * 30, end="")  # noqa: T201

    def step(self, actions):
        print("on my way")  # noqa: T201
        return super().step(actions)


class Debugged(CartPoleTeam):
    """Its user quits the debugger in it."""

    def step(self, actions):
        raise BdbQuit
