"""The learner of one policy: owns its parameters, optimiser and loss, and turns batches into versions of weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.items import Update, Weights
from marlflow.flow import Place
from marlflow.learn.flat import FlatAdam, FlatParameters
from marlflow.policy.tensors import as_tensor

VALUES_CHUNK_ROWS = 16_384
_NOT_FOR_LOSSES = frozenset({"version", "t_env", "t_agent", "row_id"})
_TRANSITION_COLUMNS = tuple(field.name for field in fields(Transitions) if field.name not in _NOT_FOR_LOSSES)
_COUNTS = ("version", "updates", "updates_when_published", "updates_when_synced", "stale_rows_dropped")


class LossTerms(NamedTuple):
    """What a loss found for one minibatch of N rows.

    `total` is the scalar to descend, or None if the loss has written the gradient of every parameter itself; `terms`
    are scalars to report, detached or already numbers; `priorities` [N], detached, go back to a replay that asked.
    """

    total: Tensor | None
    terms: Mapping[str, Tensor] | Mapping[str, float]
    priorities: Tensor | None = None


class LossFunction(Protocol):
    """The loss of an algorithm: `loss(module, target_module, minibatch).total.backward()`.

    One that knows its gradient in closed form writes it into each parameter's `.grad` and returns no total.
    """

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of `minibatch`, columns [N, ...]; `target_module` is None for a learner without a target."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes the scheduled coefficients that this loss knows; the others are not its concern."""
        ...


@dataclass(frozen=True, slots=True)
class LearnerState:
    """All that a learner needs to go on as if it had never stopped: `tensors` by name, and JSON-able `numbers`."""

    tensors: Mapping[str, Array]
    numbers: Mapping[str, Any]


class TorchLearner:
    """Learns with Adam on minibatches, in this process.

    `module` has an `actor`, whose parameters are what is published, and a `critic` if its values are asked for.
    `trains_on` is the type of item that `loss` is for. With `target`, a frozen copy of the module is kept for the loss,
    and renewed by `sync_target`. `place` is None for a learner in this process.
    """

    def __init__(
        self,
        name: str,
        module: Any,
        loss: LossFunction,
        *,
        trains_on: type,
        learning_rate: float,
        max_grad_norm: float = float("inf"),
        adam_eps: float = 1e-8,
        seed: int = 0,
        device: str = "cpu",
        target: bool = False,
    ) -> None:
        self.name, self.loss, self.trains_on = name, loss, trains_on
        self.place: Place | None = None
        self.version = self.updates = self.updates_when_published = self.updates_when_synced = 0
        self.stale_rows_dropped = 0
        self.device = torch.device(device)
        self._on_cpu = self.device.type == "cpu"
        self.module: Any = module.to(self.device)
        self.flat = FlatParameters(module, module.actor)
        self.optimiser = FlatAdam(self.flat, learning_rate, max_grad_norm, adam_eps)
        self.target_module: Any = None
        self._target_flat: FlatParameters | None = None
        if target:
            self.target_module, self._target_flat = _frozen_copy(self.module)
        self._generator = torch.Generator().manual_seed(seed)
        self.published = Weights(0, self.flat.publish())

    def values(self, obs: Array) -> Array:
        """The critic's values of `obs` [N, ...], float32 [N]."""
        with torch.inference_mode():
            chunks = [
                self.module.critic(as_tensor(obs[start : start + VALUES_CHUNK_ROWS]).to(self.device)).cpu().numpy()
                for start in range(0, len(obs), VALUES_CHUNK_ROWS)
            ]
        return np.concatenate(chunks) if chunks else np.zeros(0, np.float32)

    def update(self, batch: Batch | Transitions, epochs: int = 1, minibatch_agent_steps: int | None = None) -> Update:
        """Learns from each row of `batch` once per epoch, in minibatches of at least `minibatch_agent_steps` rows.

        There are floor(rows / minibatch_agent_steps) minibatches of nearly equal size, and always at least one;
        without `minibatch_agent_steps` there is one. `loss` of the result has the means of the loss's terms and of
        `grad_norm` over the steps taken; a step whose gradient is not finite is skipped and counted.
        """
        columns = {name: self._tensor(column) for name, column in _columns(batch)}
        parts = 1 if minibatch_agent_steps is None else max(1, batch.rows // minibatch_agent_steps)
        log, priorities = _StepLog(), None
        for _ in range(epochs if batch.rows else 0):
            order = torch.randperm(batch.rows, generator=self._generator).to(self.device) if parts > 1 else None
            found = [self._step(minibatch, log) for minibatch in _minibatches(columns, order, parts)]
            priorities = _in_row_order(found, order)
        return self._report(batch, epochs, log, priorities)

    def _report(self, batch: Batch | Transitions, epochs: int, log: _StepLog, priorities: Tensor | None) -> Update:
        loss, taken, skipped = log.means()
        self.updates += taken
        dropped, self.stale_rows_dropped = self.stale_rows_dropped, 0
        version = batch.version if isinstance(batch, Transitions) else batch.columns["version"]
        return Update(
            policy=self.name,
            rows=round(batch.rows * epochs * taken / (taken + skipped)) if skipped else batch.rows * epochs,
            updates=taken,
            version=self.version,
            loss=loss,
            updates_skipped=skipped,
            staleness_mean=float(self.version - version.mean()) if version is not None and len(version) else 0.0,
            stale_rows_dropped=dropped,
            rows_carried=int(batch.segments["carried"].sum()) if isinstance(batch, Batch) else 0,
            priorities=None if priorities is None or skipped else priorities.cpu().numpy(),
            row_ids=batch.row_id if isinstance(batch, Transitions) else None,
        )

    def sync_target(self) -> None:
        """Copies the parameters into the target; raises TypeError if this learner has none."""
        if self._target_flat is None:
            raise TypeError(f"the learner of policy {self.name!r} was made without a target")
        self._target_flat.load(self.flat.vector)
        self.updates_when_synced = self.updates

    def publish(self) -> Weights:
        """The acting parameters under a new version."""
        self.version += 1
        self.updates_when_published = self.updates
        self.published = Weights(self.version, self.flat.publish())
        return self.published

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes `learning_rate`; the rest goes to the loss."""
        self.optimiser.learning_rate = values.get("learning_rate", self.optimiser.learning_rate)
        self.loss.set_schedule(values)

    def state(self) -> LearnerState:
        """Copies of the parameters, the optimiser's moments, the target and the random state; see `load_state`."""
        tensors = {name: tensor.cpu().numpy().copy() for name, tensor in self._tensors().items()}
        tensors["generator"] = self._generator.get_state().numpy().copy()
        tensors["published"] = self.published.flat.copy()  # not what is learned since: versions name one thing only
        numbers = {name: getattr(self, name) for name in _COUNTS}
        return LearnerState(tensors, {**numbers, "learning_rate": self.optimiser.learning_rate})

    def load_state(self, state: LearnerState) -> None:
        """Goes on from `state`; raises ValueError if it is of another module."""
        for name, tensor in self._tensors().items():
            if state.tensors[name].shape != tensor.shape:
                raise ValueError(f"{name} of {self.name!r}: expected {tensor.shape}, got {state.tensors[name].shape}")
            tensor.copy_(as_tensor(state.tensors[name]))
        self._generator.set_state(as_tensor(state.tensors["generator"]))
        for name in _COUNTS:
            setattr(self, name, int(state.numbers[name]))
        self.optimiser.learning_rate = float(state.numbers["learning_rate"])
        self.published = Weights(self.version, state.tensors["published"].copy())

    def _tensors(self) -> dict[str, Tensor]:
        adam = self.optimiser
        own = {"vector": self.flat.vector, "moment_1": adam.moment_1, "moment_2": adam.moment_2, "steps": adam.steps}
        return own if self._target_flat is None else {**own, "target": self._target_flat.vector}

    def _step(self, minibatch: Mapping[str, Tensor], log: _StepLog) -> Tensor | None:
        self.flat.gradient.zero_()
        total, terms, priorities = self.loss(self.module, self.target_module, minibatch)
        if total is not None:
            total.backward()
        log.add(terms, self.optimiser.step())
        return priorities

    def _tensor(self, column: Array) -> Tensor:
        if column.dtype == np.float64:
            column = column.astype(np.float32)
        tensor = as_tensor(column)
        return tensor if self._on_cpu else tensor.to(self.device)


class _StepLog:
    """The terms of each step, left where they are until the end."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._scalars: list[Tensor | float] = []

    def add(self, terms: Mapping[str, Tensor] | Mapping[str, float], grad_norm: Tensor | float) -> None:
        self._names = (*terms, "grad_norm")
        self._scalars += terms.values()
        self._scalars.append(grad_norm)

    def means(self) -> tuple[dict[str, float], int, int]:
        """The mean of each term over the steps with a finite gradient, how many these are, and how many had none."""
        on_device = [scalar for scalar in self._scalars if isinstance(scalar, Tensor)]
        fetched = iter(torch.stack(on_device).tolist() if on_device else ())
        scalars = [next(fetched) if isinstance(scalar, Tensor) else scalar for scalar in self._scalars]
        width = max(1, len(self._names))
        steps = [scalars[start : start + width] for start in range(0, len(scalars), width)]
        finite = [step for step in steps if math.isfinite(step[-1])]
        columns = zip(*finite, strict=True)
        means = {name: sum(column) / len(finite) for name, column in zip(self._names, columns, strict=False)}
        return means, len(finite), len(steps) - len(finite)


def _columns(batch: Batch | Transitions) -> Iterator[tuple[str, Array]]:
    if isinstance(batch, Batch):
        yield from ((name, column) for name, column in batch.columns.items() if name not in _NOT_FOR_LOSSES)
        return
    for name in _TRANSITION_COLUMNS:
        column = getattr(batch, name)
        if column is not None:
            yield name, column


def _minibatches(columns: Mapping[str, Tensor], order: Tensor | None, parts: int) -> Iterator[dict[str, Tensor]]:
    if order is None:
        yield dict(columns)
        return
    # Shuffled once per epoch: each minibatch is then a view.
    views = [column.index_select(0, order).tensor_split(parts) for column in columns.values()]
    for part in zip(*views, strict=True):
        yield dict(zip(columns, part, strict=True))


def _in_row_order(found: list[Tensor | None], order: Tensor | None) -> Tensor | None:
    present = [priorities for priorities in found if priorities is not None]
    if not present:
        return None
    shuffled = torch.cat(present)
    return shuffled if order is None else torch.empty_like(shuffled).index_copy_(0, order, shuffled)


def _frozen_copy(module: Any) -> tuple[Any, FlatParameters]:
    frozen = copy.deepcopy(module)
    flat = FlatParameters(frozen, frozen.actor)
    frozen.requires_grad_(False)
    return frozen, flat
