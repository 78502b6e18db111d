"""The Lagrange multiplier of a limit on costs, in units of reward per cost.

Ray, Achiam and Amodei, "Benchmarking safe exploration in deep reinforcement learning", 2019, section 4 (PPO-Lagrangian
and TRPO-Lagrangian).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marlflow.base.batch import Array
from marlflow.learner.part_state import PartState

COST_CRITIC = "cost_critic"
"""The name of a network's critic of costs, and of its loss group."""
COST_TOTAL, COST_EPISODES, MULTIPLIER = "cost_total", "cost_episodes", "multiplier"
"""Names of values that the driver sends like scheduled settings: the summed costs of all episodes of the run, a mean
over agents each, and their number; and of the multiplier itself, which losses and stages are sent."""


class Multiplier(PartState):
    """A multiplier of at least 0 that rises while costs are above their limit, and falls while they are below.

    `terms` are what the last call of `step` is to report.
    """

    name = MULTIPLIER

    def __init__(self, initial: float) -> None:
        self.value = initial
        # The totals up to the last step.
        self._cost = self._episodes = 0.0

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
        self.value, self._cost, self._episodes = state.tolist()

    def restarted(self, start: Array) -> Array:
        # Only later episodes count.
        return np.array([start[0], self._cost, self._episodes])
