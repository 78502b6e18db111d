"""The state that a part of an algorithm keeps at its learner: saved in checkpoints, restored, and reported.

This file has one of the shipped states: the Lagrange multiplier of a limit on costs, in units of reward per cost (Ray,
Achiam and Amodei, "Benchmarking safe exploration in deep reinforcement learning", 2019, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from marlflow.base.arrays import Array


def saved_name(name: str) -> str:
    """Return the name that a part's state has in checkpoints, apart from the learner's own."""
    return f"part.{name}"


class PartState:
    """Base of such states, one array each, saved as `part.<name>`; stages find it by `learner.part_state(name)`."""

    name: str
    is_constant: ClassVar[bool] = False
    """Whether it never changes after `begin`, so that it may be kept by each of several learners."""
    value: Array
    """The state, of constant shape and dtype; a class with its own methods to save its state may leave it out."""
    terms: Mapping[str, float] = MappingProxyType({})
    """Numbers that the learner reports with the terms of the losses of an update."""

    def begin(self, module: Any) -> None:
        """Begin with the learner's network: at the start, and again after a warm start has changed its parameters."""

    def state(self) -> Array:
        """Return a copy of the state."""
        return self.value.copy()

    def load_state(self, state: Array) -> None:
        """Restore what `state` returned."""
        self.value = state.copy()

    def restarted(self, start: Array) -> Array:
        """Return the state after a reset of the learner, given the state of a new one."""
        return start


COST_CRITIC = "cost_critic"
"""The name of a network's critic of costs, and of its loss group."""
COST_TOTAL, COST_EPISODES, MULTIPLIER = "cost_total", "cost_episodes", "multiplier"
"""Names of values that the driver sends like scheduled settings: the summed costs of all episodes of the run, a mean
over agents each, and their number; and of the multiplier itself, which losses and stages are sent."""


class Multiplier(PartState):
    """A multiplier of at least 0 that rises while costs are above their limit, and falls while they are below.

    `value` is the multiplier and the totals up to its last step, float64 [3]. `terms` are the terms of the last step.
    """

    name = MULTIPLIER

    def __init__(self, initial: float) -> None:
        self.value = np.array([initial, 0.0, 0.0])

    def step(self, scheduled: Mapping[str, float], cost_limit: float, learning_rate: float) -> float:
        """Add `learning_rate` times (mean cost - `cost_limit`), to at least 0, and return the multiplier.

        The mean is over the episodes in the totals of `scheduled` that were not there before; without any, nothing
        changes.
        """
        multiplier, cost_before, episodes_before = map(float, self.value)
        cost, episodes = scheduled.get(COST_TOTAL, cost_before), scheduled.get(COST_EPISODES, episodes_before)
        new_terms = {}
        if episodes > episodes_before:
            mean = (cost - cost_before) / (episodes - episodes_before)
            multiplier = max(0.0, multiplier + learning_rate * (mean - cost_limit))
            self.value = np.array([multiplier, cost, episodes])
            new_terms = {"cost_mean": mean, "cost_violation": max(0.0, mean - cost_limit)}
        self.terms = {MULTIPLIER: multiplier, **new_terms}
        return multiplier

    def restarted(self, start: Array) -> Array:
        # Only later episodes count.
        return np.array([start[0], *self.value[1:]])
