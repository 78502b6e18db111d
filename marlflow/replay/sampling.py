"""Which rows a draw takes: every row alike, or in proportion to priorities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import InvalidInput
from marlflow.base.kept import Tree
from marlflow.replay.priorities import SumTree
from marlflow.replay.ring import pieces


class Sampler(Protocol):
    """Chooses among the rows alive, which are always numbered first to stop - 1."""

    def evicted(self, first: int, stop: int) -> None:
        """The rows first to stop - 1 are gone."""
        ...

    def added(self, first: int, stop: int) -> None:
        """The rows first to stop - 1 are new."""
        ...

    def draw(self, count: int, first: int, stop: int) -> tuple[Array, Array]:
        """Row numbers, int64 [count], and their importance weights, float32 [count]."""
        ...

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        """New priorities, [B], of rows that are alive."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Take the present values of what is scheduled, by name: those that it knows."""
        ...

    def state(self, first: int, stop: int) -> Tree:
        """What `load_state` needs to choose on as if never stopped: a dict, whose `kind` names the sampling."""
        ...

    def load_state(self, state: Tree, first: int, stop: int) -> None:
        """Go on from `state`, taken when the rows first to stop - 1 were alive, or none of them if they are equal."""
        ...


class Sampling(Protocol):
    """A configuration that says how rows are chosen."""

    def build(self, capacity: int, generator: np.random.Generator) -> Sampler:
        """The sampler over `capacity` rows."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every row is as likely as any other; importance weights are 1, priorities are of no use and ignored."""

    def build(self, capacity: int, generator: np.random.Generator) -> Sampler:
        """The sampler over `capacity` rows."""
        return _UniformSampler(generator)


@dataclass(frozen=True, slots=True)
class Prioritized:
    """A row of priority p is drawn in proportion to (p + epsilon)**alpha (Schaul et al., 2016, arXiv:1511.05952).

    Importance weights are (N P(i))**-beta over the largest of the same draw; `beta` may be scheduled. A new row has
    the largest priority seen so far, 1 at first.
    """

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        rules = {
            f"alpha is in [0, 1], not {self.alpha}": 0.0 <= self.alpha <= 1.0,
            f"beta is in [0, 1], not {self.beta}": 0.0 <= self.beta <= 1.0,
            f"epsilon is above 0, not {self.epsilon}, or a row of priority 0 never comes back": 0.0
            < self.epsilon
            < np.inf,
        }
        if broken := [f"prioritized sampling: {rule}" for rule, holds in rules.items() if not holds]:
            raise InvalidInput(broken)

    def build(self, capacity: int, generator: np.random.Generator) -> Sampler:
        """The sampler over `capacity` rows."""
        return _PrioritizedSampler(self, capacity, generator)


class _UniformSampler:
    __slots__ = ("_generator",)

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def evicted(self, first: int, stop: int) -> None:
        return

    def added(self, first: int, stop: int) -> None:
        return

    def draw(self, count: int, first: int, stop: int) -> tuple[Array, Array]:
        return self._generator.integers(first, stop, count), np.ones(count, np.float32)

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        return

    def set_schedule(self, values: Mapping[str, float]) -> None:
        return

    def state(self, first: int, stop: int) -> Tree:
        return {"kind": "uniform"}

    def load_state(self, state: Tree, first: int, stop: int) -> None:
        return


class _PrioritizedSampler:
    __slots__ = ("_beta", "_capacity", "_config", "_generator", "_largest", "_tree")

    def __init__(self, config: Prioritized, capacity: int, generator: np.random.Generator) -> None:
        self._config, self._capacity, self._generator = config, capacity, generator
        self._beta, self._largest = config.beta, 1.0
        self._tree = SumTree(capacity)

    def evicted(self, first: int, stop: int) -> None:
        for slots, _ in pieces(first, stop, self._capacity):
            self._tree.set_range(slots, 0.0)

    def added(self, first: int, stop: int) -> None:
        for slots, _ in pieces(first, stop, self._capacity):
            self._tree.set_range(slots, self._largest**self._config.alpha)

    def draw(self, count: int, first: int, stop: int) -> tuple[Array, Array]:
        total = self._tree.total
        strata = np.arange(count) + self._generator.random(count)
        slots = self._tree.find(strata * (total / count))
        probability = self._tree.get(slots) / total
        weights = ((stop - first) * probability) ** -self._beta
        return first + (slots - first) % self._capacity, (weights / weights.max()).astype(np.float32)

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        if not len(row_ids):
            return
        raised = priorities + self._config.epsilon
        self._largest = max(self._largest, float(raised.max()))
        self._tree.set(row_ids % self._capacity, raised**self._config.alpha)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        beta = float(values.get("priority_beta", self._beta))
        if not 0.0 <= beta <= 1.0:
            raise InvalidInput([f"prioritized sampling: priority_beta is in [0, 1], but its schedule gave {beta}"])
        self._beta = beta

    def state(self, first: int, stop: int) -> Tree:
        slots = np.arange(first, stop) % self._capacity
        return {
            "kind": "prioritized",
            "beta": self._beta,
            "largest": self._largest,
            "weights": self._tree.get(slots),
        }

    def load_state(self, state: Tree, first: int, stop: int) -> None:
        weights = state["weights"]
        self._beta, self._largest = state["beta"], state["largest"]
        self._tree = SumTree(self._capacity)
        for slots, offset in pieces(first, stop, self._capacity):
            self._tree.set_range(slots, weights[offset : offset + slots.stop - slots.start])
