"""Sampling schemes: uniform, or prioritized by a sum tree.

Schaul et al., 2016, "Prioritized Experience Replay", arXiv:1511.05952, appendix B.2.1. With 32 children per node, a
million rows need four levels. Nodes are recomputed from their children, so rounding errors do not accumulate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import InvalidInput
from marlflow.base.serialization import Tree
from marlflow.replay.segments import pieces

_WIDTH = 32


class Sampler(Protocol):
    """Samples from the stored rows, a range of numbers."""

    @property
    def is_uniform(self) -> bool:
        """Whether draws do not depend on priorities."""
        ...

    def evicted(self, first: int, stop: int) -> None:
        """Forget evicted rows [first, stop)."""
        ...

    def added(self, first: int, stop: int) -> None:
        """Register new rows [first, stop)."""
        ...

    def draw(self, count: int, first: int, stop: int) -> tuple[Array, Array]:
        """Return row numbers, int64 [count], and importance weights, float32 [count]."""
        ...

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        """Set the priorities, [B], of stored rows."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set scheduled values by name; unknown names are ignored."""
        ...

    def state(self, first: int, stop: int) -> Tree:
        """Return the state, a dict whose `kind` names the scheme."""
        ...

    def load_state(self, state: Tree, first: int, stop: int) -> None:
        """Restore the state of stored rows [first, stop)."""
        ...


class Sampling(Protocol):
    """The configuration of a sampling scheme."""

    def build(self, capacity: int, generator: np.random.Generator) -> Sampler:
        """Make the sampler for `capacity` rows."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform sampling: importance weights are 1, priorities are ignored."""

    def build(self, capacity: int, generator: np.random.Generator) -> Sampler:
        return _UniformSampler(generator)


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Proportional prioritization: P(i) ~ (p_i + epsilon)**alpha (Schaul et al., 2016, arXiv:1511.05952).

    Importance weights are (N P(i))**-beta, scaled to at most 1 per draw; `beta` may be scheduled. New rows get the
    largest priority so far, at least 1.
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
        return _PrioritizedSampler(self, capacity, generator)


class _UniformSampler:
    __slots__ = ("_generator",)

    is_uniform = True

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

    is_uniform = False

    def __init__(self, config: Prioritized, capacity: int, generator: np.random.Generator) -> None:
        self._config = config
        self._capacity = capacity
        self._generator = generator
        self._beta = config.beta
        # The largest priority so far, which new rows get.
        self._largest = 1.0
        self._tree = SumTree(capacity)

    def evicted(self, first: int, stop: int) -> None:
        for slots, _ in pieces(first, stop, self._capacity):
            self._tree.set_range(slots, 0.0)

    def added(self, first: int, stop: int) -> None:
        for slots, _ in pieces(first, stop, self._capacity):
            self._tree.set_range(slots, self._largest**self._config.alpha)

    def draw(self, count: int, first: int, stop: int) -> tuple[Array, Array]:
        total = self._tree.total
        # Stratified sampling: one draw from each of `count` equal parts of the total weight.
        strata = np.arange(count) + self._generator.random(count)
        slots = self._tree.find(strata * (total / count))
        probability = self._tree.get(slots) / total
        weights = ((stop - first) * probability) ** -self._beta
        # The number in the stored range that lies at this slot of the ring.
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
        # Weights are saved in order of rows, not of slots, so the capacity may differ on loading.
        slots = np.arange(first, stop) % self._capacity
        return {
            "kind": "prioritized",
            "largest": self._largest,
            "weights": self._tree.get(slots),
        }

    def load_state(self, state: Tree, first: int, stop: int) -> None:
        weights = state["weights"]
        self._largest = state["largest"]
        self._tree = SumTree(self._capacity)
        for slots, offset in pieces(first, stop, self._capacity):
            self._tree.set_range(slots, weights[offset : offset + slots.stop - slots.start])


class SumTree:
    """Weights >= 0 of slots 0 to size - 1, initially 0, searchable by cumulative weight."""

    __slots__ = ("_families",)

    def __init__(self, size: int) -> None:
        # Leaves first, [families, _WIDTH]: a family is the children of one node in the next level.
        self._families: list[Array] = []
        while size > 1 or not self._families:
            size = -(-size // _WIDTH)
            self._families.append(np.zeros((size, _WIDTH)))

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._families[-1].sum())

    def get(self, slots: Array) -> Array:
        """Return the weights of `slots`, float64 [B]."""
        leaves: Array = self._families[0].reshape(-1)
        return leaves.take(slots)

    def set(self, slots: Array, weights: Array) -> None:
        """Set the weights of `slots`, [B]; the last of duplicates counts."""
        nodes = slots
        self._families[0].reshape(-1)[slots] = weights
        for below, level in zip(self._families[:-1], self._families[1:], strict=True):
            nodes = nodes // _WIDTH
            level.reshape(-1)[nodes] = below.take(nodes, axis=0).sum(axis=1)

    def set_range(self, slots: slice, weights: Array | float) -> None:
        """Set the weights of consecutive slots."""
        first, stop = slots.start, slots.stop
        self._families[0].reshape(-1)[slots] = weights
        for below, level in zip(self._families[:-1], self._families[1:], strict=True):
            first, stop = first // _WIDTH, -(-stop // _WIDTH)
            level.reshape(-1)[first:stop] = below[first:stop].sum(axis=1)

    def find(self, mass: Array) -> Array:
        """Return for each mass, [B] in [0, total), the slot where the cumulative weight first exceeds it.

        Despite rounding, its weight is positive.
        """
        row = np.arange(len(mass))
        node = np.zeros(len(mass), np.int64)
        for level in reversed(self._families):
            weights = level.take(node, axis=0)
            cumulated = weights.cumsum(axis=1)
            # Rounding can push a mass to or past its family's sum; keep it below.
            mass = np.minimum(mass, np.nextafter(cumulated[:, -1], 0.0))
            child = (cumulated > mass[:, None]).argmax(axis=1)
            mass = np.maximum(mass - (cumulated[row, child] - weights[row, child]), 0.0)
            node = node * _WIDTH + child
        return node
