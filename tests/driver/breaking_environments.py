"""Cart-poles that break in some of their episodes, each in its own way."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from marlflow.env.games.cartpole_team import CartPoleTeam

AT_STEP = 4


def breaks(seed: int) -> bool:
    """Whether an episode breaks."""
    return seed % 5 == 1


class Breaks(CartPoleTeam):
    """In some of its episodes, at the fourth env step, does what its subclass says. Nobody falls before."""

    def __init__(self) -> None:
        super().__init__(max_cycles=8)
        self._breaks = False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert seed is not None
        self._breaks = breaks(seed)
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        now = self._breaks and self._cycles == AT_STEP - 1
        made = super().step(actions)
        return self.spoil(*made) if now else made

    def spoil(self, observations: Any, rewards: Any, terminations: Any, truncations: Any, infos: Any) -> Any:
        raise NotImplementedError


class Raises(Breaks):
    def spoil(self, *made: Any) -> Any:
        raise ValueError("the pole snapped")


class RaisesInReset(Breaks):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        made = super().reset(seed, options)
        if self._breaks:
            raise OSError("no such track")
        return made

    def step(self, actions: dict[str, int]) -> Any:
        return CartPoleTeam.step(self, actions)


class Hangs(Breaks):
    def spoil(self, *made: Any) -> Any:
        while True:
            time.sleep(1_000)


class RewardIsNaN(Breaks):
    def spoil(self, observations: Any, rewards: Any, *others: Any) -> Any:
        return observations, {**rewards, "cart_2": float("nan")}, *others


class ObservationIsNaN(Breaks):
    def spoil(self, observations: Any, *others: Any) -> Any:
        return {**observations, "cart_1": np.full(4, np.nan, np.float32)}, *others


class ObservationOutside(Breaks):
    def spoil(self, observations: Any, *others: Any) -> Any:
        return {**observations, "cart_1": np.array([1e9, 0.0, 0.0, 0.0], np.float32)}, *others


class ObservationOfAnotherShape(Breaks):
    def spoil(self, observations: Any, *others: Any) -> Any:
        return {**observations, "cart_1": np.zeros(3, np.float32)}, *others


class UnknownAgent(Breaks):
    def spoil(self, observations: Any, rewards: Any, *others: Any) -> Any:
        return {**observations, "ghost": observations["cart_0"]}, {**rewards, "ghost": 1.0}, *others


class ForgetsAnObservation(Breaks):
    def spoil(self, observations: Any, *others: Any) -> Any:
        return {agent: seen for agent, seen in observations.items() if agent != "cart_3"}, *others


class ForgetsAReward(Breaks):
    def spoil(self, observations: Any, rewards: Any, *others: Any) -> Any:
        return observations, {agent: reward for agent, reward in rewards.items() if agent != "cart_3"}, *others
