"""Environments with something wrong, by import path."""

from typing import Any

from gymnasium.spaces import Box

from marlflow.env.cartpole_team import CartPoleTeam


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
