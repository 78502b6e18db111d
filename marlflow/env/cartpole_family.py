"""A family of cart-pole teams for meta-learning: each task has a pole, a force and a direction of its own.

What distinguishes a task cannot be seen in an observation, only in what comes of actions, and in half of the tasks the
two actions are exchanged: a policy that knows nothing of its task cannot do well in all of them, as with the goals and
directions of Finn et al., "Model-agnostic meta-learning", 2017, https://arxiv.org/abs/1703.03400, section 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pettingzoo import AECEnv
from pettingzoo.utils import parallel_to_aec

from marlflow.base.batch import Array
from marlflow.env.cartpole_team import CartPoleTeam

_TASKS = 2**31


@dataclass(frozen=True, slots=True)
class CartPoleTask:
    """The physics of one task: half the pole's length (m), its mass (kg), and the force of action 1 (N)."""

    half_length: float
    pole_mass: float
    force: float


def draw_task(number: int, reversed_share: float = 0.5) -> CartPoleTask:
    """The task of a number: half length 0.25 to 1 m, mass 0.05 to 0.3 kg, force 8 to 12 N, reversed in that share."""
    random = np.random.default_rng(number)
    half_length, pole_mass, force = random.uniform([0.25, 0.05, 8.0], [1.0, 0.3, 12.0]).tolist()
    return CartPoleTask(half_length, pole_mass, -force if random.random() < reversed_share else force)


class CartPoleFamily(CartPoleTeam):
    """A cart-pole team whose carts all have the physics of the episode's task.

    `reset(seed, options={"task": n})` takes the task of the number n, a whole number from 0 up; without it the number
    is drawn by the generator of `seed`. Where the poles begin depends on the seed alone.
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
        """Puts every pole upright, in the task of `options["task"]` if it is there."""
        observations, infos = super().reset(seed)
        number = (options or {}).get("task")
        self.task = draw_task(int(self._random.integers(_TASKS)) if number is None else number, self.reversed_share)
        for cart in self._carts.values():
            cart.length, cart.masspole, cart.force_mag = self.task.half_length, self.task.pole_mass, self.task.force
            cart.total_mass = cart.masspole + cart.masscart
            cart.polemass_length = cart.masspole * cart.length
        return observations, infos


def parallel_env(
    num_agents: int = 4, max_cycles: int = 100, reversed_share: float = 0.5, render_mode: str | None = None
) -> CartPoleFamily:
    """The family as a ParallelEnv."""
    return CartPoleFamily(num_agents, max_cycles, reversed_share, render_mode)


def env(
    num_agents: int = 4, max_cycles: int = 100, reversed_share: float = 0.5, render_mode: str | None = None
) -> AECEnv[str, Array, int | None]:
    """The family as an AECEnv, by PettingZoo's own conversion."""
    return parallel_to_aec(CartPoleFamily(num_agents, max_cycles, reversed_share, render_mode))
