"""Optimizers over a span of one flat vector: Adam in one fused kernel, or any of torch's by its name.

Each element is stepped by itself, so that it does not matter where one parameter ends and the next begins; optimizers
that look at whole matrices or at the loss itself (Adafactor, Muon, LBFGS) cannot be used here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from marlflow.base.batch import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.policy.tensors import as_tensor

_WHOLE_MATRICES = ("Adafactor", "LBFGS", "Muon", "SparseAdam")


class Stepper(Protocol):
    """Steps one vector; a gradient that is not finite changes nothing."""

    learning_rate: float
    max_norm: float

    def step(self) -> Tensor | float:
        """Takes one step; returns the norm of the gradient before it is clipped to `max_norm`, on a CPU as a number."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """The optimizer's state, by name; each entry has one number, or one for each parameter."""
        ...

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Restores what `state` returned."""
        ...

    def like(self, state: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Template tensors (shape, dtype) for the entries of `state`, by name."""
        ...


@runtime_checkable
class Optimizer(Protocol):
    """The settings of an optimizer: `Adam(...)`, or any class of torch.optim by its `_target_`."""

    def over(self, vector: Tensor, gradient: Tensor, learning_rate: float, max_norm: float) -> Stepper:
        """A stepper of `vector` [P] by `gradient` [P]."""
        ...


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma and Ba, 2015, arXiv:1412.6980); with `weight_decay`, AdamW (arXiv:1711.05101)."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def over(self, vector: Tensor, gradient: Tensor, learning_rate: float, max_norm: float) -> Stepper:
        """A stepper of `vector` [P] by `gradient` [P]."""
        return FlatAdam(vector, gradient, learning_rate, max_norm, self)


@dataclass(frozen=True, slots=True)
class TorchOptimizer:
    """A class of torch.optim with its settings but for parameters and learning rate; raises ConfigInvalid early."""

    make: Callable[..., torch.optim.Optimizer]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Tries it out on one parameter."""
        name = getattr(self.make, "__name__", str(self.make))
        if name in _WHOLE_MATRICES:
            raise ConfigInvalid([f"optimizer {name} does not step each number by itself; take Adam, RMSprop or SGD"])
        if "lr" in self.settings:
            raise ConfigInvalid([f"optimizer {name} is given its lr by the algorithm: set learning_rate there instead"])
        try:
            self.make([nn.Parameter(torch.zeros(1))], lr=1e-3, **self.settings)
        except (TypeError, ValueError) as error:
            raise ConfigInvalid([f"optimizer {name} does not take {dict(self.settings)}: {error}"]) from error

    def over(self, vector: Tensor, gradient: Tensor, learning_rate: float, max_norm: float) -> Stepper:
        """A stepper of `vector` [P] by `gradient` [P]."""
        parameter = nn.Parameter(vector)
        parameter.grad = gradient
        made = self.make([parameter], lr=learning_rate, **self.settings)
        return _TorchStepper(made, parameter, learning_rate, max_norm)


class FlatAdam:
    """Adam over one vector, with its gradient clipped by its norm.

    One fused kernel unscales, updates both moments and steps. On a CPU the norm is read at once; elsewhere it stays on
    the device, and no step waits for it.
    """

    def __init__(
        self, vector: Tensor, gradient: Tensor, learning_rate: float, max_norm: float, settings: Adam = Adam()
    ) -> None:
        self.learning_rate, self.max_norm, self._settings = learning_rate, max_norm, settings
        self._parameters, self._gradients = [vector], [gradient]
        self.moment_1, self.moment_2 = torch.zeros_like(vector), torch.zeros_like(vector)
        self.steps = torch.zeros((), device=vector.device)
        self._one = torch.ones_like(self.steps)
        self._on_cpu = vector.device.type == "cpu"

    def step(self) -> Tensor | float:
        """Takes one step; returns the norm of the gradient before it was clipped."""
        norm: Tensor = torch.linalg.vector_norm(self._gradients[0])
        return self._step_now(norm) if self._on_cpu else self._step_unseen(norm)

    def state(self) -> Mapping[str, Tensor]:
        """Both moments and the number of steps."""
        return {"moment_1": self.moment_1, "moment_2": self.moment_2, "steps": self.steps}

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Restores what `state` returned."""
        for name, tensor in self.state().items():
            tensor.copy_(as_tensor(state[name]))

    def like(self, state: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """The state itself: its shapes do not depend on what was saved."""
        return self.state()

    def _step_now(self, norm: Tensor) -> float:
        size = norm.item()
        if math.isfinite(size):
            self._fused_step(norm / self.max_norm if size > self.max_norm else None, None)
        return size

    def _step_unseen(self, norm: Tensor) -> Tensor:
        lost = torch.isfinite(norm).logical_not_().to(torch.float32)
        self._fused_step((norm / self.max_norm).clamp_(min=1.0), lost)
        return norm

    def _fused_step(self, scale: Tensor | None, lost: Tensor | None) -> None:
        # torch.optim.Adam(fused=True) calls this same kernel, at six times the price for a vector of this size.
        self.steps.add_(self._one)
        settings = self._settings
        kernel = torch._fused_adamw_ if settings.weight_decay else torch._fused_adam_
        kernel(
            self._parameters,
            self._gradients,
            [self.moment_1],
            [self.moment_2],
            [],
            [self.steps],
            lr=self.learning_rate,
            beta1=settings.beta_1,
            beta2=settings.beta_2,
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
            found_inf=lost,
        )
        if lost is not None:
            self.steps -= lost


class _TorchStepper:
    """One of torch's optimizers over one vector, its gradient clipped by its norm."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, learning_rate: float, max_norm: float
    ) -> None:
        self.learning_rate, self.max_norm = learning_rate, max_norm
        self._optimizer, self._parameter = optimizer, parameter

    def step(self) -> float:
        gradient = self._parameter.grad
        assert gradient is not None
        size = float(torch.linalg.vector_norm(gradient))
        if math.isfinite(size):
            if size > self.max_norm:
                gradient.mul_(self.max_norm / size)
            self._optimizer.param_groups[0]["lr"] = self.learning_rate
            self._optimizer.step()
        return size

    def state(self) -> Mapping[str, Tensor]:
        kept = self._optimizer.state[self._parameter]
        return {name: torch.as_tensor(value) for name, value in kept.items() if value is not None}

    def load_state(self, state: Mapping[str, Array]) -> None:
        own = self._optimizer.state[self._parameter]
        own.clear()
        own.update({name: torch.from_numpy(value.copy()).to(self._parameter.device) for name, value in state.items()})

    def like(self, state: Mapping[str, Any]) -> Mapping[str, Tensor]:
        shapes = {name: getattr(value, "shape", ()) for name, value in state.items()}
        return {name: self._parameter.detach() if shape else torch.zeros(()) for name, shape in shapes.items()}
