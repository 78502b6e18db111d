"""Cart-pole teams for meta-learning: each task has its own pole, force and direction.

Observations do not reveal the task, and half of the tasks swap the two actions, so only an adapting policy does well in
all (Finn et al., "Model-agnostic meta-learning", 2017, https://arxiv.org/abs/1703.03400, section 5.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pettingzoo import AECEnv
from pettingzoo.utils import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.env.games.cartpole_team import CartPoleTeam

_TASKS = 2**31


@dataclass(frozen=True, slots=True)
class CartPoleTask:
    """A task's physics: half the pole's length (m), its mass (kg), and the force of action 1 (N)."""

    half_length: float
    pole_mass: float
    force: float


def draw_task(number: int, reversed_share: float = 0.5) -> CartPoleTask:
    """Draw task `number`: half length 0.25 to 1 m, mass 0.05 to 0.3 kg, force 8 to 12 N, some reversed."""
    random = np.random.default_rng(number)
    half_length, pole_mass, force = random.uniform([0.25, 0.05, 8.0], [1.0, 0.3, 12.0]).tolist()
    return CartPoleTask(half_length, pole_mass, -force if random.random() < reversed_share else force)


class CartPoleFamily(CartPoleTeam):
    """A cart-pole team with the physics of the episode's task.

    `reset(seed, options={"task": n})` selects task n >= 0; by default it is drawn at random.
    """

    metadata: ClassVar[dict[str, Any]] = {**CartPoleTeam.metadata, "name": "cartpole_family_v0", "tasks": True}

    def __init__(
        self,
        num_agents: int = 4,
        max_cycles: int = 100,
        reversed_share: float = 0.5,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(num_agents, max_cycles, render_mode)
        if not 0.0 <= reversed_share <= 1.0:
            raise ValueError(f"reversed_share must be from 0 to 1, not {reversed_share}")
        self.reversed_share = reversed_share
        self.task = draw_task(0, reversed_share)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        # The carts draw first, so that their initial state does not depend on whether a task is given.
        observations, infos = super().reset(seed)
        number = (options or {}).get("task")
        self.task = draw_task(int(self._random.integers(_TASKS)) if number is None else number, self.reversed_share)
        for cart in self._envs.values():
            cart.length, cart.masspole, cart.force_mag = self.task.half_length, self.task.pole_mass, self.task.force
            cart.total_mass = cart.masspole + cart.masscart
            cart.polemass_length = cart.masspole * cart.length
        return observations, infos


def parallel_env(
    num_agents: int = 4, max_cycles: int = 100, reversed_share: float = 0.5, render_mode: str | None = None
) -> CartPoleFamily:
    """Make the family as a ParallelEnv."""
    return CartPoleFamily(num_agents, max_cycles, reversed_share, render_mode)


def env(
    num_agents: int = 4, max_cycles: int = 100, reversed_share: float = 0.5, render_mode: str | None = None
) -> AECEnv[str, Array, int | None]:
    """Make the family as an AECEnv."""
    return parallel_to_aec(CartPoleFamily(num_agents, max_cycles, reversed_share, render_mode))
