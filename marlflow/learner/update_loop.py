"""The update loop of a learner: shuffles a batch, cuts it into minibatches, steps each loss group on each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marlflow.base.batch import Array
from marlflow.base.train_batch import TrainBatch
from marlflow.learner.compute import Compute, tensors_on
from marlflow.learner.gradient_exchange import GradientExchange
from marlflow.learner.loss import LossTerms
from marlflow.learner.loss_groups import OptimizerGroup, norm_of_all
from marlflow.learner.minibatches import Division
from marlflow.learner.parameters import LearnerParameters
from marlflow.learner.update_job import StepLog, UpdateJob, UpdateResult
from marlflow.policy.normalized import observers


class UpdateLoop:
    """Steps `parameters` on minibatches; owns the random numbers that decide their order, and the losses' noise.

    A loss that says `noise_per_row` is given a column `noise` of so many standard normal numbers for each item.
    """

    def __init__(self, parameters: LearnerParameters, noise_per_row: int, seed: int, compute: Compute) -> None:
        self._parameters, self._noise_per_row = parameters, noise_per_row
        self._tensor, self._autocast = tensors_on(torch.device(compute.device)), compute.autocast()
        self._observers = observers(parameters.module)
        self.generator = torch.Generator().manual_seed(seed)

    def run(self, job: UpdateJob, exchange: GradientExchange) -> UpdateResult:
        """All optimizer steps of an update; a step whose gradient is not finite changes nothing."""
        tensors = self._tensors(job.columns)
        # All of them before the first step: on a GPU nothing is then waited for between epochs.
        drawn = [(self._order(job.division), self._noise(job.items)) for _ in range(job.epochs)]
        fractions = job.division.fractions() if job.epochs else ()
        log, order, minibatches_seen = StepLog(), None, job.updates_before
        priorities: list[Tensor] = []
        for order, noise in drawn:
            priorities.clear()
            minibatches = _minibatches(tensors | noise, order, job.division)
            for minibatch, fraction in zip(minibatches, fractions, strict=True):
                found, is_taken = self._step(minibatch, fraction, minibatches_seen + 1, exchange, log)
                minibatches_seen += is_taken
                priorities += [] if found is None else [found]
        steps = log.steps()
        if all(math.isfinite(step[-1]) for step in steps):  # else its rows are not fit to be learned from
            for observer in self._observers:
                observer.observe(tensors)
        return UpdateResult(log.names, steps, priorities, order)

    def gradient(self, batch: TrainBatch) -> tuple[Array, dict[str, float]]:
        """The gradient of the first group's loss over all rows, by all parameters [P], and its terms; no step."""
        parameters, log = self._parameters, StepLog()
        parameters.flat.gradient.zero_()
        if batch.rows:
            tensors = self._tensors(batch.columns_for_losses())
            log.add(self._add_gradient(parameters.groups[0], tensors | self._noise(batch.count)).terms, 0.0)
        terms = dict(zip(log.names[:-1], log.steps()[0], strict=False)) if batch.rows else {}
        return parameters.flat.gradient.cpu().numpy().copy(), terms

    def apply(self, gradient: Array) -> float:
        """One step of the first group by a gradient [P] that was found elsewhere; its norm."""
        self._parameters.flat.gradient.copy_(self._tensor(gradient))
        return float(self._parameters.groups[0].optimizer.step())

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Sets the learning rates and `max_grad_norm` of all groups, and what their losses know."""
        for group in self._parameters.groups:
            group.set_schedule(values)

    def _tensors(self, columns: Mapping[str, Array]) -> dict[str, Tensor]:
        return {name: self._tensor(column) for name, column in columns.items()}

    def _order(self, division: Division) -> Tensor | None:
        order = division.order(self.generator)
        return None if order is None else self._tensor(order.numpy())

    def _noise(self, count: int) -> dict[str, Tensor]:
        if not self._noise_per_row:
            return {}
        return {"noise": self._tensor(torch.randn(count, self._noise_per_row, generator=self.generator).numpy())}

    @np.errstate(over="ignore", invalid="ignore")  # a step that is not finite is skipped and counted, not warned of
    def _step(
        self,
        minibatch: Mapping[str, Tensor],
        fraction: float,
        number: int,
        exchange: GradientExchange,
        log: StepLog,
    ) -> tuple[Tensor | None, bool]:
        """Steps all groups in order, of which some learn by certain `number`s only.

        Returns the priorities that the first of them found, and whether the step was taken, as far as is known here.
        """
        terms: dict[str, Any] | None = None  # none where this process has no rows of the minibatch
        norms: list[Tensor | float] = []
        priorities, is_taken = None, True
        for group in self._parameters.groups:
            if number % group.every:
                continue
            group.gradient.zero_()
            found = self._add_gradient(group, minibatch) if fraction else None
            exchange.add_up(group.gradient, fraction)
            norms.append(group.optimizer.step())
            is_taken = not (isinstance(norms[-1], float) and not math.isfinite(norms[-1]))
            if found is not None:
                terms = {**(terms or {}), **found.terms}
                priorities = found.priorities if priorities is None else priorities
            if not is_taken:  # what the other groups would see is not what they are to learn from
                break
        if terms is not None:
            log.add(terms, norm_of_all(norms))
        return priorities, is_taken

    def _add_gradient(self, group: OptimizerGroup, minibatch: Mapping[str, Tensor]) -> LossTerms:
        module, target_module = self._parameters.module, self._parameters.target_module
        if self._autocast is None:
            return group.add_gradient(module, target_module, minibatch)
        with self._autocast:
            return group.add_gradient(module, target_module, minibatch)


def _minibatches(
    columns: Mapping[str, Tensor], order: Tensor | None, division: Division
) -> Iterator[dict[str, Tensor]]:
    """This process's share of each minibatch; shuffled once per epoch, so that each is a view."""
    ordered = columns.values() if order is None else [column.index_select(0, order) for column in columns.values()]
    for pieces in zip(*map(division.split, ordered), strict=True):
        yield dict(zip(columns, pieces, strict=True))
