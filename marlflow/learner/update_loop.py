"""The update loop of a learner: epochs, minibatches and optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from marlflow.base.arrays import Array
from marlflow.base.limits import ClockLimit, Limit
from marlflow.base.random import key
from marlflow.batches.batch import TrainBatch
from marlflow.learner.compiled_updates import AddGradient, CompiledUpdates, Epoch
from marlflow.learner.compute import Compute, tensors_on
from marlflow.learner.gradient_exchange import GradientExchange
from marlflow.learner.loss import LossTerms, Terms
from marlflow.learner.loss_groups import OptimizerGroup, joined_terms, noise_width, total_norm
from marlflow.learner.minibatches import BatchDivision, Division
from marlflow.learner.parameters import LearnerParameters
from marlflow.learner.update_job import StepLog, TargetUpdate, UpdateJob, UpdateResult
from marlflow.policy.tensors import seeded


class UpdateLoop:
    """Runs optimizer steps on minibatches.

    Its random `generator` draws the order of rows and the losses' noise, `noise_per_row` standard normal numbers each.
    An update ends before the first minibatch at which its `limit` has passed.
    """

    def __init__(
        self, parameters: LearnerParameters, noise_per_row: int, seed: int, compute: Compute, compiled: CompiledUpdates
    ) -> None:
        self._parameters, self._compiled = parameters, compiled
        self._noise_per_row = noise_per_row
        self._tensor, self._autocast = tensors_on(torch.device(compute.device)), compute.autocast()
        self.generator, self._seed = torch.Generator().manual_seed(seed), seed
        self.limit: Limit = ClockLimit()

    # A step with overflow is skipped and counted, so numpy's warning would be noise.
    @np.errstate(over="ignore", invalid="ignore")
    def run(self, job: UpdateJob, exchange: GradientExchange) -> UpdateResult:
        """Run all optimizer steps of an update until the limit; skip those whose gradient is not finite."""
        # Layers of a user's, such as dropout, draw from torch's global generator, which no checkpoint has.
        with seeded(key(self._seed, job.updates_before) >> 1):
            return self._run(job, exchange)

    def _run(self, job: UpdateJob, exchange: GradientExchange) -> UpdateResult:
        tensors = self._tensors(job.columns)
        groups = self._parameters.groups_of(job.policy, job.groups)
        # Drawn for all epochs before the first step, so that a GPU is not waited for between epochs.
        width = self._noise_per_row if job.groups is None else noise_width(groups)
        draws = [Epoch(self._order(job.division), self._noise(job.items, width)) for _ in range(job.epochs)]
        if draws and self._compiled.is_due(job.updates_before):
            if not exchange.is_alone:
                compiled = partial(self._compiled.add_gradient, eager=self._add_gradient, count_varies=job.count_varies)
                return self._run_by_steps(job, exchange, groups, tensors, draws, compiled)
            step = partial(self._eager_step, exchange=exchange)
            result = self._compiled.run(job, groups, tensors, draws, exchange, self.limit, step)
            if result is not None:
                return self._observed(job, tensors, result)
        return self._run_by_steps(job, exchange, groups, tensors, draws, self._add_gradient)

    @np.errstate(over="ignore", invalid="ignore")
    def run_ahead(
        self, jobs: Sequence[UpdateJob], target: TargetUpdate, exchange: GradientExchange
    ) -> list[UpdateResult] | None:
        """Run compiled updates of one minibatch each, alike in shape, with the target's between them, in one call.

        Return None, having changed nothing, if they cannot be compiled.
        """
        first, before = jobs[0], self.generator.get_state()
        groups = self._parameters.groups_of(first.policy, first.groups)
        width = self._noise_per_row if first.groups is None else noise_width(groups)
        noise = [self._noise(job.items, width) for job in jobs]
        columns = {name: np.concatenate([job.columns[name] for job in jobs]) for name in first.columns}
        merged = first._replace(
            columns=columns, division=BatchDivision([job.items for job in jobs]), epochs=1, target=target
        )
        draws = [Epoch(None, {name: torch.cat([one[name] for one in noise]) for name in noise[0]})]
        step = partial(self._eager_step, exchange=exchange)
        result = self._compiled.run(merged, groups, self._tensors(columns), draws, exchange, self.limit, step)
        if result is None:
            self.generator.set_state(before)
            return None
        return result.by_minibatch()

    def _run_by_steps(
        self,
        job: UpdateJob,
        exchange: GradientExchange,
        groups: Sequence[OptimizerGroup],
        tensors: Mapping[str, Tensor],
        draws: Sequence[Epoch],
        add_gradient: AddGradient,
    ) -> UpdateResult:
        fractions = job.division.fractions() if job.epochs else ()
        log, order, minibatches_seen = StepLog(), None, job.updates_before
        priorities: list[Tensor] = []
        left = job.epochs * len(fractions)
        for order, noise in draws:
            # Only the last epoch's priorities are returned.
            priorities.clear()
            minibatches = _minibatches({**tensors, **noise} if noise else tensors, order, job.division)
            for minibatch, fraction in zip(minibatches, fractions, strict=True):
                if exchange.ends(self.limit):
                    return self._observed(job, tensors, UpdateResult(log.names, log.steps(), minibatches_left=left))
                left -= 1
                number = minibatches_seen + 1
                new_priorities, is_taken = self._step(groups, minibatch, fraction, number, exchange, log, add_gradient)
                minibatches_seen += is_taken
                priorities += [] if new_priorities is None else [new_priorities]
        return self._observed(job, tensors, UpdateResult(log.names, log.steps(), priorities, order))

    def _eager_step(
        self, groups: Sequence[OptimizerGroup], minibatch: Mapping[str, Tensor], number: int, exchange: GradientExchange
    ) -> tuple[dict[str, float], float, Tensor | None]:
        log = StepLog()
        priorities, _ = self._step(groups, minibatch, 1.0, number, exchange, log, self._add_gradient)
        names, (step,) = log.names, log.steps()
        return dict(zip(names[:-1], step, strict=False)), step[-1], priorities

    def _observed(self, job: UpdateJob, tensors: Mapping[str, Tensor], result: UpdateResult) -> UpdateResult:
        """Let running statistics observe the rows, and return the result."""
        steps = result.steps
        # Running statistics (of returns, for instance) must not include rows that gave a gradient of inf or NaN.
        if all(math.isfinite(step[-1]) for step in steps) and (steps or not result.minibatches_left):
            for observer in self._parameters.observers(job.policy, job.groups):
                observer.observe(tensors)
        return result

    def gradient(self, batch: TrainBatch) -> tuple[Array, dict[str, float]]:
        """Return the gradient [P] and the terms of the first group's loss over all rows."""
        parameters, log = self._parameters, StepLog()
        parameters.flat.gradient.zero_()
        if batch.rows:
            tensors = self._tensors(batch.columns_for_losses())
            noise = self._noise(batch.count, self._noise_per_row)
            log.add(self._add_gradient(parameters.groups[0], tensors | noise).terms, 0.0)
        # The last name and number are the gradient's norm, which is known only where the gradient is applied.
        terms = dict(zip(log.names[:-1], log.steps()[0], strict=False)) if batch.rows else {}
        return parameters.flat.gradient.cpu().numpy().copy(), terms

    def apply(self, gradient: Array) -> float:
        """Take one optimizer step of the first group by `gradient` [P]; return its norm."""
        self._parameters.flat.gradient.copy_(self._tensor(gradient))
        return float(self._parameters.groups[0].optimizer.step())

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set learning rates, `max_grad_norm` and loss coefficients of all groups."""
        self._compiled.set_schedule(values)
        for group in self._parameters.groups:
            group.set_schedule(values)

    def _tensors(self, columns: Mapping[str, Array]) -> dict[str, Tensor]:
        return {name: self._tensor(column) for name, column in columns.items()}

    def _order(self, division: Division) -> Tensor | None:
        order = division.order(self.generator)
        return None if order is None else self._tensor(order.numpy())

    def _noise(self, count: int, width: int) -> dict[str, Tensor]:
        if not width:
            return {}
        return {"noise": self._tensor(torch.randn(count, width, generator=self.generator).numpy())}

    def _step(
        self,
        groups: Sequence[OptimizerGroup],
        minibatch: Mapping[str, Tensor],
        fraction: float,
        number: int,
        exchange: GradientExchange,
        log: StepLog,
        add_gradient: AddGradient,
    ) -> tuple[Tensor | None, bool]:
        """Step the groups in order; return the first priorities, and whether the step was taken."""
        # Stays None if this process has no rows of the minibatch.
        terms: Terms | None = None
        norms: list[Tensor | float] = []
        priorities, is_taken = None, True
        for group in groups:
            if number % group.every:
                continue
            group.gradient.zero_()
            loss_terms = add_gradient(group, minibatch) if fraction else None
            exchange.all_reduce(group.gradient, fraction)
            norms.append(group.optimizer.step())
            # On a GPU the norm is not known yet, and the step counts as taken.
            is_taken = not (isinstance(norms[-1], float) and not math.isfinite(norms[-1]))
            if loss_terms is not None:
                minibatch = {**minibatch, **loss_terms.columns} if loss_terms.columns else minibatch
                terms = loss_terms.terms if terms is None else joined_terms(terms, loss_terms.terms)
                priorities = loss_terms.priorities if priorities is None else priorities
            # The next groups' losses depend on this group's step, so they are skipped too.
            if not is_taken:
                break
        if terms is not None:
            log.add(terms, total_norm(norms))
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
    # Each column is shuffled once per epoch, so that every minibatch is a view.
    ordered = columns.values() if order is None else [column.index_select(0, order) for column in columns.values()]
    for pieces in zip(*map(division.split, ordered), strict=True):
        yield dict(zip(columns, pieces, strict=True))
