"""The optimiser steps of one update: which rows each takes, what its loss reported, and priorities in row order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from marlflow.base.batch import Array
from marlflow.learn.loss import Terms


class Work(NamedTuple):
    """What an update goes through: `columns` of `rows` rows, `epochs` times, in `parts` minibatches each time."""

    columns: Mapping[str, Array]
    rows: int
    epochs: int
    parts: int


class Learned(NamedTuple):
    """What an update found: each step's `names` terms, and of the last epoch each minibatch's priorities and the order.

    `priorities` is empty for a loss that has none; `order` [N] is None where the rows were not shuffled.
    """

    names: Sequence[str]
    steps: Sequence[Sequence[float]]
    priorities: list[Tensor]
    order: Tensor | None

    def priorities_by_row(self) -> Tensor | None:
        """Priorities [N] in the order of the rows; None if there are none."""
        if not self.priorities:
            return None
        shuffled = torch.cat(self.priorities)
        return shuffled if self.order is None else torch.empty_like(shuffled).index_copy_(0, self.order, shuffled)


def minibatches(columns: Mapping[str, Tensor], order: Tensor | None, parts: int) -> Iterator[dict[str, Tensor]]:
    """The rows of `columns` [N, ...] in `order`, in `parts` of nearly equal size; all at once without an order."""
    if order is None:
        yield dict(columns)
        return
    # Shuffled once per epoch: each minibatch is then a view.
    views = [column.index_select(0, order).tensor_split(parts) for column in columns.values()]
    for part in zip(*views, strict=True):
        yield dict(zip(columns, part, strict=True))


class StepLog:
    """The terms of each step and its gradient's norm, left where they are until the end."""

    def __init__(self) -> None:
        self._names: list[tuple[str, ...]] = []
        self._scalars: list[Tensor | float] = []

    def add(self, terms: Terms, grad_norm: Tensor | float) -> None:
        """One more step; not every step has every term, where parts of a module learn at times only."""
        self._names.append(tuple(terms))
        self._scalars += terms.values()
        self._scalars.append(grad_norm)

    @property
    def names(self) -> tuple[str, ...]:
        """All terms, in order, and last the norm."""
        return (*dict.fromkeys(name for names in dict.fromkeys(self._names) for name in names), "grad_norm")

    def steps(self) -> list[list[float]]:
        """Each step's terms, then its norm, fetched from the device all at once; NaN where a step has no such term."""
        on_device = [scalar for scalar in self._scalars if isinstance(scalar, Tensor)]
        fetched = iter(torch.stack(on_device).tolist() if on_device else ())
        scalars = iter([next(fetched) if isinstance(scalar, Tensor) else scalar for scalar in self._scalars])
        found = [{name: next(scalars) for name in (*names, "grad_norm")} for names in self._names]
        names = self.names
        return [[step.get(name, math.nan) for name in names] for step in found]


def means(names: Sequence[str], steps: Sequence[Sequence[float]]) -> tuple[dict[str, float], int, int]:
    """The mean of each term over the steps with a finite gradient, how many these are, and how many had none.

    A term is left out of the mean where a step does not have it.
    """
    finite = [step for step in steps if math.isfinite(step[-1])]
    columns = [[term for term in column if not math.isnan(term)] for column in zip(*finite, strict=True)]
    found = {name: sum(column) / len(column) for name, column in zip(names, columns, strict=False) if column}
    return found, len(finite), len(steps) - len(finite)
