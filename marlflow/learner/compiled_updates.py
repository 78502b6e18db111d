"""Updates of a learner by XLA: the same minibatches, noise, steps and reports as by autograd, in a few calls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import InvalidInput, NotCompiled, UserCodeFailed
from marlflow.base.limits import Limit
from marlflow.compiled import xla
from marlflow.learner.gradient_exchange import GradientExchange
from marlflow.learner.loss import LossTerms
from marlflow.learner.loss_groups import OptimizerGroup
from marlflow.learner.parameters import LearnerParameters
from marlflow.learner.traced_losses import TracedLosses
from marlflow.learner.update_job import TargetUpdate, UpdateJob, UpdateResult, padded_size, padded_sizes

if TYPE_CHECKING:
    from marlflow.compiled.update import Steps

Compile: TypeAlias = Literal["auto"] | bool

AUTO_AFTER = 1_000
"""Optimizer steps after which "auto" compiles: fewer take less time than compiling does."""
STEPS_AHEAD = 16
"""Updates of one minibatch each, with the target's between them, that one call runs at most."""
GRADIENTS_APART = "gradients are computed by one stage, and applied by another"
"""A reason why updates are not compiled."""
MANY_PROGRAMS = 16
"""Programs of a learner above which the run says that there are many."""
_CALL_S = 0.25
"""Seconds of one call, after which an update may end."""
_GRADIENT_ERROR, _TERM_ERROR = 1e-3, 1e-3
"""The largest relative differences from autograd with which a program is used; rounding gives about 1e-6."""


class Epoch(NamedTuple):
    """The draws of one epoch: the order of items [N], None if not shuffled, and the losses' noise [N, W] by name."""

    order: Tensor | None
    noise: Mapping[str, Tensor]


EagerStep: TypeAlias = Callable[
    [Sequence[OptimizerGroup], Mapping[str, Tensor], int], tuple[Mapping[str, float], float, Tensor | None]
]
"""One step by autograd on (groups, minibatch, number): loss terms, the gradient's norm, and the rows' priorities."""

AddGradient: TypeAlias = Callable[[OptimizerGroup, Mapping[str, Tensor]], LossTerms]
"""Adds the gradient of a minibatch to a loss group's gradient, which is 0 before, and returns the loss."""


_CONVOLVES = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = "PyTorch computes its convolutions faster than XLA on a CPU; compile=true compiles them all the same"


class CompiledUpdates:
    """Compiles a learner's updates, and runs them where it can.

    With `wanted` "auto", updates are compiled from `AUTO_AFTER` optimizer steps on; autograd computes updates that
    cannot be compiled, or that it computes faster. With True, updates are compiled from the first one on, and an update
    that cannot be compiled raises InvalidInput. `why_not` is the reason why nothing can be compiled, if there is one.
    Whether an update is compiled depends on its loss groups and its padded size, and not on earlier updates, so a
    resumed run computes the same as the run without interruption.
    """

    def __init__(self, parameters: LearnerParameters, wanted: Compile, why_not: str = "") -> None:
        self._parameters, self._wanted, self._why_not = parameters, wanted, why_not
        if wanted == "auto" and not why_not and any(isinstance(one, _CONVOLVES) for one in parameters.module.modules()):
            self._why_not = _CONVOLUTIONS
        self._scheduled: dict[str, float] = {}
        self._programs: dict[Any, _Program] = {}
        self._notes: list[str] = []
        self._said: set[Any] = set()
        self._compiles = 0
        self._compile_s = 0.0
        if why_not and wanted is True:
            raise InvalidInput([f"compile=true, and {why_not}"])

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Remember scheduled values: a program reads them at each update."""
        self._scheduled |= values

    def is_due(self, updates: int) -> bool:
        """Return whether the next update, after `updates` optimizer steps, is to be compiled."""
        return self._wanted is True or (self._wanted == "auto" and updates >= AUTO_AFTER)

    def are_compiled(self, updates: int) -> bool:
        """Return whether the next update is due, and nothing is known that prevents all updates."""
        return self.is_due(updates) and not (self._why_not or xla.problem())

    def refuse(self, why: str, of: Any = None) -> None:
        """Note once for each `of` why an update is computed by autograd; raises InvalidInput if it must be compiled."""
        if self._wanted is True:
            raise InvalidInput([f"compile=true, and {why}"])
        if of not in self._said:
            self._said.add(of)
            self._notes.append(f"updates are not compiled: {why}")

    def run(
        self,
        job: UpdateJob,
        groups: Sequence[OptimizerGroup],
        columns: Mapping[str, Tensor],
        epochs: Sequence[Epoch],
        exchange: GradientExchange,
        limit: Limit,
        eager_step: EagerStep,
    ) -> UpdateResult | None:
        """Run all optimizer steps of an update until the limit; return None, having changed nothing, if it cannot."""
        try:
            program = self._program(groups)
            return program.run(job, columns, epochs, exchange, limit, eager_step, self._scheduled)
        except NotCompiled as error:
            self.refuse(str(error), tuple(group.name for group in groups))
        return None

    def add_gradient(
        self, group: OptimizerGroup, minibatch: Mapping[str, Tensor], eager: AddGradient, count_varies: bool
    ) -> LossTerms:
        """Compute the same as `eager`, compiled if possible, for processes that exchange gradients before each step."""
        try:
            program = self._program([group], alone=False)
            return program.add_gradient(minibatch, eager, count_varies, self._scheduled)
        except NotCompiled as error:
            # One reason may hold for all groups.
            self.refuse(str(error), str(error))
        return eager(group, minibatch)

    def _program(self, groups: Sequence[OptimizerGroup], alone: bool = True) -> _Program:
        key = tuple(group.name for group in groups), tuple(sorted(self._scheduled)), alone
        if (program := self._programs.get(key)) is None:
            if problem := self._why_not or xla.problem():
                raise NotCompiled(problem)
            if not self._programs and (problem := xla.cache_problem()):
                self._notes.append(problem)
            program = self._programs[key] = _Program(self._parameters, groups, alone)
        return program

    def news(self) -> CompileNews:
        """Return the compilations and the notes for the user since the last call."""
        programs = self._programs.values()
        compiles = sum(program.compiles for program in programs)
        compile_s = sum(program.compile_s for program in programs)
        self._compile_s += compile_s
        if self._compiles <= MANY_PROGRAMS < self._compiles + compiles:
            self._notes.append(_MANY.format(count=self._compiles + compiles, seconds=self._compile_s))
        self._compiles += compiles
        news = CompileNews(compiles, compile_s, "; ".join(self._notes))
        self._notes.clear()
        for program in programs:
            program.compiles, program.compile_s = 0, 0.0
        return news


class CompileNews(NamedTuple):
    """The number of compilations, the seconds that they took, and notes for the user."""

    compiles: int = 0
    compile_s: float = 0.0
    note: str = ""


class _Program:
    """The compiled update of some loss groups, or if not `alone` the gradient of the only one."""

    def __init__(self, parameters: LearnerParameters, groups: Sequence[OptimizerGroup], alone: bool) -> None:
        from marlflow.compiled.update import Group, gradient_program, update_program

        self._parameters, self._groups, self._alone = parameters, groups, alone
        self._names: list[str] = []
        self._losses = TracedLosses(parameters, groups)
        made = []
        for group in groups:
            if (step := group.optimizer.compiled()) is None:
                raise NotCompiled("its optimizer is none of Adam, AdamW, SGD and RMSprop as compiled")
            start, stop = group.span.start, group.span.stop
            made.append(Group(group.name, self._losses.of(group), start, stop, group.every, step))
        self._update = update_program(made, self._names, parameters.flat.learning)
        self._gradient = gradient_program(made[0].loss, self._names, made[0].start, made[0].stop)
        self._verified: set[int] = set()
        self._refused: dict[int, str] = {}
        self._seconds_per_step = math.inf
        self.compiles, self.compile_s = 0, 0.0

    # -- running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        job: UpdateJob,
        columns: Mapping[str, Tensor],
        epochs: Sequence[Epoch],
        exchange: GradientExchange,
        limit: Limit,
        eager_step: EagerStep,
        scheduled: Mapping[str, float],
    ) -> UpdateResult | None:
        from marlflow.compiled.update import STEPS_PER_CALL

        self._losses.scheduled = scheduled
        self._losses.verify_constants()
        sizes = [sum(shares) for shares in job.division.sizes()]
        width, items = padded_sizes(job, sizes)
        if width in self._refused:
            raise NotCompiled(self._refused[width])
        number, steps, left = job.updates_before + 1, list[list[float]](), len(sizes) * len(epochs)
        priorities: list[Tensor] = []
        # Epochs without noise differ only in their order, so they run together.
        together = [[epoch] for epoch in epochs] if any(epoch.noise for epoch in epochs) else [epochs]
        # One minibatch of all items needs no order. Several updates are one program, however many they are.
        is_whole = len(sizes) == len(together[0]) == 1 and job.target is None
        slots = STEPS_PER_CALL if job.target is None else STEPS_AHEAD
        items = width if is_whole else items if job.target is None else slots * width
        for some in together:
            order = None if is_whole else np.concatenate([_order_of(epoch.order, sizes, width) for epoch in some])
            rows = _padded({**columns, **some[0].noise}, items, is_whole)
            counts, done = sizes * len(some), 0
            while done < len(counts):
                if exchange.ends(limit):
                    return UpdateResult((*self._names, "grad_norm"), steps, minibatches_left=left)
                # Checked for each padded size: parameters of exactly this size would be mistaken for rows.
                if width not in self._verified:
                    ahead = None if order is None else order[done:]
                    try:
                        is_verified = self._verify(rows, ahead, counts[done], eager_step, slots)
                    except NotCompiled as error:
                        self._refused[width] = str(error)
                        raise
                    self._verified |= {width} if is_verified else set()
                # Until then one minibatch at a time, so that an update that is refused has changed nothing.
                count = self._count(min(slots, len(counts) - done)) if width in self._verified else 1
                part = slice(done, done + count)
                taken = None if order is None else order[part]
                ran, terms = self._call(rows, taken, counts[part], number, slots, job.target)
                number += sum(math.isfinite(step[-1]) for step in terms)
                steps += terms
                if ran.priorities is not None:
                    by_step = np.asarray(ran.priorities)
                    priorities += [
                        torch.from_numpy(row[:n].copy()) for row, n in zip(by_step, counts[part], strict=False)
                    ]
                done, left = done + count, left - count
        # Only the last epoch's priorities are returned.
        return UpdateResult((*self._names, "grad_norm"), steps, priorities[-len(sizes) :], epochs[-1].order)

    def _count(self, left: int) -> int:
        """Return how many of the minibatches left to take in the next call."""
        # The first call may compile, and has few minibatches.
        timed = 8 if math.isinf(self._seconds_per_step) else int(_CALL_S / max(self._seconds_per_step, 1e-9))
        return max(1, min(left, timed))

    def _call(
        self,
        rows: Mapping[str, Any],
        order: Any,
        sizes: Sequence[int],
        number: int,
        slots: int,
        target: TargetUpdate | None,
    ) -> tuple[Steps, list[list[float]]]:
        count, compiled = len(sizes), self._update._cache_size()
        began = time.perf_counter()
        steps_of, lengths = _steps_of(order, sizes, slots)
        state, steps = self._update(
            self._state(), self._inputs(target), rows, steps_of, lengths, np.int32(count), np.int32(number)
        )
        terms: list[list[float]] = np.asarray(steps.terms)[:count].tolist()
        took = time.perf_counter() - began
        if self._update._cache_size() > compiled:
            self.compiles, self.compile_s = self.compiles + 1, self.compile_s + took
        else:
            self._seconds_per_step = took / count
        self._keep(state)
        return steps, terms

    def add_gradient(
        self, minibatch: Mapping[str, Tensor], eager: AddGradient, count_varies: bool, scheduled: Mapping[str, float]
    ) -> LossTerms:
        """Compute the only group's gradient of a minibatch, and its loss terms."""
        self._losses.scheduled = scheduled
        self._losses.verify_constants()
        size = len(next(iter(minibatch.values())))
        width = padded_size(size, count_varies)
        if width in self._refused:
            raise NotCompiled(self._refused[width])
        rows = _padded(minibatch, width, is_read=True)
        if width not in self._verified:

            def eager_step(
                groups: Sequence[OptimizerGroup], part: Mapping[str, Tensor], _: int
            ) -> tuple[Mapping[str, float], float, Tensor | None]:
                (group,) = groups
                found = eager(group, part)
                terms = {name: float(term) for name, term in found.terms.items()}
                return terms, float(group.gradient.norm()), found.priorities

            try:
                is_verified = self._verify(rows, None, size, eager_step, 1)
            except NotCompiled as error:
                self._refused[width] = str(error)
                raise
            if is_verified:
                self._verified.add(width)
        return self._call_gradient(rows, size)

    def _call_gradient(self, rows: Mapping[str, Any], size: int) -> LossTerms:
        (group,) = self._groups
        state, inputs, compiled = self._state(), self._inputs(None), self._gradient._cache_size()
        began = time.perf_counter()
        gradient, losses = self._gradient(
            state.vector, state.target, inputs.others, rows, np.float32(size), inputs.scheduled
        )
        group.gradient.numpy()[:] = gradient
        if self._gradient._cache_size() > compiled:
            self.compiles, self.compile_s = self.compiles + 1, self.compile_s + time.perf_counter() - began

        def real(column: Any) -> Tensor:
            return torch.from_numpy(np.array(column[:size]))

        priorities = None if losses.priorities is None else real(losses.priorities)
        columns = {name: real(column) for name, column in losses.columns.items()}
        terms = {name: float(losses.terms[name]) for name in self._names}
        return LossTerms(torch.zeros(()), terms, priorities, columns)

    def _state(self) -> Any:
        from marlflow.compiled.update import LearnerState

        flat = self._parameters.flat
        optimizers = tuple(
            {name: tensor.numpy() for name, tensor in group.optimizer.state().items()} for group in self._groups
        )
        target = self._parameters.target_flat
        frozen = np.zeros(0, np.float32) if target is None else target.vector.numpy()
        synced = np.int32(self._parameters.updates_when_synced)
        return LearnerState(flat.vector.numpy(), flat.gradient.numpy(), optimizers, frozen, synced)

    def _inputs(self, target: TargetUpdate | None) -> Any:
        from marlflow.compiled.update import Inputs

        every, tau = (0, 1.0) if target is None else target
        rates = np.array([group.optimizer.learning_rate for group in self._groups], np.float32)
        norms = np.array([group.optimizer.max_grad_norm for group in self._groups], np.float32)
        scheduled = {name: np.float32(value) for name, value in self._losses.scheduled.items()}
        others = tuple(buffer.numpy() for buffer in self._losses.others)
        return Inputs(others, np.int32(every), np.float32(tau), rates, norms, scheduled)

    def _keep(self, state: Any) -> None:
        flat = self._parameters.flat
        flat.vector.numpy()[:] = state.vector
        flat.gradient.numpy()[:] = state.gradient
        for group, after in zip(self._groups, state.optimizers, strict=True):
            for name, tensor in group.optimizer.state().items():
                tensor.numpy()[...] = after[name]
        synced, target = int(state.synced), self._parameters.target_flat
        if target is not None and synced != self._parameters.updates_when_synced:
            target.vector.numpy()[:] = state.target
            self._parameters.updates_when_synced = synced

    # -- verifying --------------------------------------------------------------------------------------------------

    def _verify(self, rows: Mapping[str, Any], order: Any, size: int, eager_step: EagerStep, slots: int) -> bool:
        """Raise NotCompiled if the next minibatch has another gradient by autograd; change nothing.

        Return whether they could be compared: numbers that are not finite come from the parameters and rows.
        """
        flat, before = self._parameters.flat, [tensor.clone() for tensor in self._mutable()]
        # A step number at which every group is updated, groups with delayed updates included.
        number = math.lcm(*(group.every for group in self._groups))
        # A padded minibatch, so that a loss that counts padding is noticed.
        size = max(1, size - 3)
        try:
            if self._alone:
                ran, found = self._call(rows, None if order is None else order[:1], [size], number, slots, None)
                priorities = None if ran.priorities is None else np.array(ran.priorities)[0, :size]
            else:
                trial = self._call_gradient(rows, size)
                found = [[*map(float, trial.terms.values()), float(flat.gradient[self._groups[0].span].norm())]]
                priorities = None if trial.priorities is None else trial.priorities.numpy()
        except (NotCompiled, KeyboardInterrupt):
            raise
        except Exception as error:
            # If the loss itself is wrong, autograd raises an error, too.
            what = "this failed" if isinstance(error, UserCodeFailed) else type(error).__name__
            raise NotCompiled(f"{what} while it was compiled: {error}") from error
        compiled = flat.gradient.clone()
        self._restore(before)
        index = np.arange(size) if order is None else order[0, :size]
        minibatch = {name: torch.from_numpy(column[index]) for name, column in rows.items()}
        terms, norm, wanted_priorities = eager_step(self._groups, minibatch, number)
        eager = flat.gradient.clone()
        self._restore(before)
        named = dict(zip((*self._names, "grad_norm"), found[0], strict=True))
        if not math.isfinite(norm) and not math.isfinite(named["grad_norm"]):
            return False
        for group in self._groups:
            got, left = compiled[group.span], eager[group.span]
            # Torch's optimizers leave a gradient clipped, and XLA's do not; the norms are compared below.
            wanted = left * (got.norm() / left.norm().clamp(min=1e-30))
            if not float((got - wanted).abs().max()) <= _GRADIENT_ERROR * float(got.abs().max()) + 1e-6:
                raise NotCompiled(_MEANS.format(what=f"gradient of loss group {group.name!r}"))
        _compare_terms(named, {**terms, "grad_norm": norm})
        if priorities is not None and wanted_priorities is not None:
            _compare_priorities(priorities, wanted_priorities.numpy())
        return True

    def _mutable(self) -> list[Tensor]:
        states = [tensor for group in self._groups for tensor in group.optimizer.state().values()]
        return [self._parameters.flat.vector, self._parameters.flat.gradient, *states, *self._losses.others]

    def _restore(self, before: Sequence[Tensor]) -> None:
        for tensor, old in zip(self._mutable(), before, strict=True):
            tensor.copy_(old)


_MANY = (
    "{count} programs were compiled, which took {seconds:.0f} s: one for each padded size of its batches and "
    "minibatches; sizes vary less in larger batches, and compile=false compiles none"
)
_NOT_BY_ROW = (
    "the priorities differ from autograd's; a row's priority is made of its own numbers and of sums, means or maxima "
    "over rows, and not of the order or the number of rows"
)
_MEANS = (
    "the {what} differs from autograd's; a loss that is compiled reads nothing but its module and its minibatch, "
    "and is a mean over rows by mean() or sum()"
)


def _compare_terms(compiled: Mapping[str, float], eager: Mapping[str, float]) -> None:
    """Raise NotCompiled if a loss term or the gradient's norm differs."""
    for name, value in eager.items():
        # A loss term may be infinite or NaN although the gradient is finite; infinities and NaN have no difference.
        is_same = math.isclose(compiled[name], value, rel_tol=_TERM_ERROR, abs_tol=1e-4)
        if not (is_same or (math.isnan(value) and math.isnan(compiled[name]))):
            raise NotCompiled(_MEANS.format(what=f"term {name!r}") + f": {compiled[name]:g} instead of {value:g}")


def _compare_priorities(compiled: Array, eager: Array) -> None:
    """Raise NotCompiled if the priority of a row differs."""
    close = _TERM_ERROR * float(np.abs(eager).max(initial=0.0))
    if not np.allclose(compiled, eager, rtol=_TERM_ERROR, atol=close, equal_nan=True):
        raise NotCompiled(_NOT_BY_ROW)


def _padded(columns: Mapping[str, Tensor], wanted: int, is_read: bool) -> dict[str, Any]:
    """Return columns of `wanted` rows; padding that `is_read` repeats the last row, so its numbers are real."""
    rows = {name: column.numpy() for name, column in columns.items()}
    count = len(next(iter(rows.values())))
    if count == wanted:
        return rows
    padded = {name: np.empty((wanted, *column.shape[1:]), column.dtype) for name, column in rows.items()}
    for name, column in rows.items():
        padded[name][:count] = column
        if is_read:
            padded[name][count:] = column[-1:]
    return padded


def _steps_of(order: Any, sizes: Sequence[int], slots: int) -> tuple[Any, Any]:
    """Return order and sizes of the steps of one call, of `slots`; without an order, of one step on all rows."""
    if order is None:
        return np.zeros((1, 0), np.int32), np.array(sizes, np.float32)
    steps_of = np.zeros((slots, order.shape[1]), np.int32)
    steps_of[: len(order)] = order
    lengths = np.ones(slots, np.float32)
    lengths[: len(sizes)] = sizes
    return steps_of, lengths


def _order_of(order: Tensor | None, sizes: Sequence[int], width: int) -> Any:
    """Return the items of each minibatch, int32 [minibatches, width]; padding repeats a minibatch's last item."""
    items = np.arange(sum(sizes), dtype=np.int32) if order is None else order.numpy().astype(np.int32)
    ends = np.cumsum(sizes)
    places = np.minimum(ends[:, None] - np.array(sizes)[:, None] + np.arange(width), ends[:, None] - 1)
    return items[places]
