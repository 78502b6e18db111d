"""The Lagrange multiplier of a limit on costs, in units of reward per cost.

Ray, Achiam and Amodei, "Benchmarking safe exploration in deep reinforcement learning", 2019, section 4 (PPO-Lagrangian
and TRPO-Lagrangian).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from marlflow.base.batch import Array
from marlflow.learner.advantages import Critic
from marlflow.learner.protocol import Scheduled

COST_TOTAL, COST_EPISODES, MULTIPLIER = "cost_total", "cost_episodes", "multiplier"
"""Names of values that the driver sends like scheduled settings: the summed costs of all episodes of the run, a mean
over agents each, and their number; and of the multiplier itself, which losses and stages are sent."""


class Constrained(Scheduled, Protocol):
    """A learner with a multiplier and a critic of costs."""

    @property
    def cost_critic(self) -> Critic:
        """Estimates the costs to come, as `values`."""
        ...

    def update_multiplier(self, cost_limit: float, learning_rate: float) -> float:
        """Move the multiplier by the episodes that ended since the last call, and return it."""
        ...


class Multiplier:
    """A multiplier of at least 0 that rises while costs are above their limit, and falls while they are below."""

    def __init__(self, initial: float) -> None:
        self.value = initial
        # The totals up to the last step.
        self._cost = self._episodes = 0.0
        self.terms: dict[str, float] = {}
        """What the last call of `step` is to report."""

    def step(self, scheduled: Mapping[str, float], cost_limit: float, learning_rate: float) -> float:
        """Add `learning_rate` times (mean cost - `cost_limit`), to at least 0, and return the multiplier.

        The mean is over the episodes in the totals of `scheduled` that were not there before; without any, nothing
        changes.
        """
        cost, episodes = scheduled.get(COST_TOTAL, self._cost), scheduled.get(COST_EPISODES, self._episodes)
        new_terms = {}
        if episodes > self._episodes:
            mean = (cost - self._cost) / (episodes - self._episodes)
            self.value = max(0.0, self.value + learning_rate * (mean - cost_limit))
            self._cost, self._episodes = cost, episodes
            new_terms = {"cost_mean": mean, "cost_violation": max(0.0, mean - cost_limit)}
        self.terms = {MULTIPLIER: self.value, **new_terms}
        return self.value

    def state(self) -> Array:
        """Return the multiplier and the totals up to its last step, float64 [3]."""
        return np.array([self.value, self._cost, self._episodes])

    def load_state(self, state: Array) -> None:
        """Restore what `state` returned."""
        self.value, self._cost, self._episodes = state.tolist()

    def restarted(self, initial: Array) -> Array:
        """Return the state `initial` of a new multiplier, for which only later episodes count."""
        return np.array([initial[0], self._cost, self._episodes])
