"""Optimizers of a flat parameter vector: Adam as one fused kernel, or a class of torch.optim.

Only elementwise optimizers work on a flat vector.

Gradients are clipped to `max_grad_norm` here, in the step of an optimizer (FlatAdam, _TorchStepper), and not in the
update loop: the fused kernel of Adam clips in the same pass over memory. Compiled updates clip in `compiled.update`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.ranges import Share, ShareBelowOne, SomeShare
from marlflow.env.user_code import failed_call
from marlflow.policy.tensors import as_tensor

if TYPE_CHECKING:
    from marlflow.compiled.optimizers import OptimizerStep

# These need whole matrices, sparse gradients or the loss.
_NOT_ELEMENTWISE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
TORCH_SETTINGS: Mapping[str, Any] = {
    "alpha": Share,
    "dampening": Share,
    "eps": SomeShare,
    "momentum": Share,
    "weight_decay": Share,
}
"""Arguments of the classes of torch.optim, whose annotations have no ranges."""


class Stepper(Protocol):
    """Takes optimizer steps on one vector; skips a gradient that is not finite."""

    learning_rate: float
    max_grad_norm: float

    def step(self) -> Tensor | float:
        """Take one step; return the gradient's norm before clipping to `max_grad_norm`, on a CPU as a float."""
        ...

    def compiled(self) -> OptimizerStep | None:
        """Return the same step for JAX arrays, with a state as in `state`; None if there is none."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """Return the optimizer's state; each entry is a scalar or has the vector's shape [P]."""
        ...

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Restore a state."""
        ...

    def like(self, state: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return template tensors (shape, dtype) for the entries of `state`."""
        ...


@runtime_checkable
class Optimizer(Protocol):
    """The settings of an optimizer: `Adam(...)`, or a class of torch.optim by its `_target_`."""

    def over(self, vector: Tensor, gradient: Tensor, learning_rate: float, max_grad_norm: float) -> Stepper:
        """Return an optimizer of `vector` [P] that reads `gradient` [P]."""
        ...


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma and Ba, 2015, arXiv:1412.6980); with `weight_decay`, AdamW (arXiv:1711.05101)."""

    beta_1: ShareBelowOne = 0.9  #: decay of the running mean of gradients
    beta_2: ShareBelowOne = 0.999  #: decay of the running mean of squared gradients
    eps: SomeShare = 1e-8  #: added to the root of the mean of squares
    weight_decay: Share = 0.0  #: share of each parameter subtracted per step, times the learning rate

    def over(self, vector: Tensor, gradient: Tensor, learning_rate: float, max_grad_norm: float) -> Stepper:
        return FlatAdam(vector, gradient, learning_rate, max_grad_norm, self)


@dataclass(frozen=True, slots=True)
class TorchOptimizer:
    """A class of torch.optim with its settings but `lr`; raises ConfigInvalid if it rejects them."""

    make: Callable[..., torch.optim.Optimizer]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        name = getattr(self.make, "__name__", str(self.make))
        if name in _NOT_ELEMENTWISE:
            raise ConfigInvalid([f"optimizer {name} does not step each number by itself; take Adam, RMSprop or SGD"])
        if "lr" in self.settings:
            raise ConfigInvalid([f"optimizer {name} is given its lr by the algorithm: set learning_rate there instead"])
        # Tried on one parameter now, so that a mistake is found before the run starts.
        tried, settings = [nn.Parameter(torch.zeros(1))], {"lr": 1e-3, **self.settings}
        try:
            self.make(tried, **settings)
        except Exception as error:
            raise ConfigInvalid([f"optimizer {failed_call(self.make, error, (tried,), settings)}"]) from error

    def over(self, vector: Tensor, gradient: Tensor, learning_rate: float, max_grad_norm: float) -> Stepper:
        parameter = nn.Parameter(vector)
        parameter.grad = gradient
        optimizer = self.make([parameter], lr=learning_rate, **self.settings)
        return _TorchStepper(self, optimizer, parameter, learning_rate, max_grad_norm)


def entries_of(optimizer: Optimizer) -> Mapping[str, Tensor]:
    """Return what an optimizer of one parameter keeps from one step to the next."""
    stepper = optimizer.over(torch.zeros(1), torch.zeros(1), 1e-3, math.inf)
    stepper.step()
    return stepper.state()


class FlatAdam:
    """Adam of one vector as a fused kernel, with clipping of the gradient's norm."""

    def __init__(
        self, vector: Tensor, gradient: Tensor, learning_rate: float, max_grad_norm: float, settings: Adam = Adam()
    ) -> None:
        self.learning_rate = learning_rate
        self.max_grad_norm = max_grad_norm
        self._settings = settings
        self._parameters, self._gradients = [vector], [gradient]
        self.moment_1, self.moment_2 = torch.zeros_like(vector), torch.zeros_like(vector)
        self.steps = torch.zeros((), device=vector.device)
        self._one = torch.ones_like(self.steps)
        self._on_cpu = vector.device.type == "cpu"

    def step(self) -> Tensor | float:
        norm: Tensor = torch.linalg.vector_norm(self._gradients[0])
        return self._step_on_cpu(norm) if self._on_cpu else self._step_on_gpu(norm)

    def compiled(self) -> OptimizerStep | None:
        from marlflow.compiled.optimizers import adam

        settings = self._settings
        return adam(settings.beta_1, settings.beta_2, settings.eps, settings.weight_decay)

    def state(self) -> Mapping[str, Tensor]:
        return {"moment_1": self.moment_1, "moment_2": self.moment_2, "steps": self.steps}

    def load_state(self, state: Mapping[str, Array]) -> None:
        for name, tensor in self.state().items():
            tensor.copy_(as_tensor(state[name]))

    def like(self, state: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return self.state()

    # The next two methods clip the gradient's norm, as clip_grad_norm_ does: the kernel divides by `grad_scale`.
    def _step_on_cpu(self, norm: Tensor) -> float:
        size = norm.item()
        if math.isfinite(size):
            self._fused_step(norm / self.max_grad_norm if size > self.max_grad_norm else None, None)
        return size

    def _step_on_gpu(self, norm: Tensor) -> Tensor:
        # The kernel itself skips the step where found_inf is 1; reading the norm here would wait for the GPU.
        found_inf = torch.isfinite(norm).logical_not_().to(torch.float32)
        self._fused_step((norm / self.max_grad_norm).clamp_(min=1.0), found_inf)
        return norm

    def _fused_step(self, scale: Tensor | None, found_inf: Tensor | None) -> None:
        # torch.optim.Adam(fused=True) calls the same kernel, but takes six times as long for a vector of this size.
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
            found_inf=found_inf,
        )
        if found_inf is not None:
            self.steps -= found_inf


class _TorchStepper:
    def __init__(
        self,
        settings: TorchOptimizer,
        optimizer: torch.optim.Optimizer,
        parameter: nn.Parameter,
        learning_rate: float,
        max_grad_norm: float,
    ) -> None:
        self.learning_rate = learning_rate
        self.max_grad_norm = max_grad_norm
        self._settings = settings
        self._optimizer = optimizer
        self._parameter = parameter

    def step(self) -> float:
        gradient = self._parameter.grad
        assert gradient is not None
        size = float(torch.linalg.vector_norm(gradient))
        if math.isfinite(size):
            if size > self.max_grad_norm:
                # Gradient clipping by the norm, as clip_grad_norm_ does.
                gradient.mul_(self.max_grad_norm / size)
            self._optimizer.param_groups[0]["lr"] = self.learning_rate
            self._optimizer.step()
        return size

    def compiled(self) -> OptimizerStep | None:
        from marlflow.compiled.optimizers import initial_state, torch_step

        if (step := torch_step(self._optimizer)) is None:
            return None
        if not self.state():
            if (state := initial_state(self._optimizer, self._parameter.detach())) is None:
                return None
            self._optimizer.state[self._parameter].update(state)
        return step

    def state(self) -> Mapping[str, Tensor]:
        state = self._optimizer.state[self._parameter]
        return {name: torch.as_tensor(value) for name, value in state.items() if value is not None}

    def load_state(self, state: Mapping[str, Array]) -> None:
        restored = self._optimizer.state[self._parameter]
        restored.clear()
        restored.update(
            {name: torch.from_numpy(value.copy()).to(self._parameter.device) for name, value in state.items()}
        )

    def like(self, state: Mapping[str, Any]) -> Mapping[str, Tensor]:
        # Torch's optimizers create their state at the first step; a state from before it has no entries.
        entries = entries_of(self._settings) if state else {}
        return {name: self._parameter.detach() if one.shape else torch.zeros(()) for name, one in entries.items()}
