"""A module's parameters and gradients as views into one vector each, and Adam over that vector.

So clearing gradients, clipping them, the optimiser's step and publishing are one operation each, however many layers
the module has. The acting parameters come first: what is published is a prefix of the vector.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.batch import Array


class FlatParameters:
    """Moves all parameters of `module` into `vector`, float32 [P], those of `acting` first; their gradients likewise.

    The module keeps its Parameter objects. Autograd adds into an existing `.grad` in place, so `gradient` is complete
    after a backward pass; it is for the caller to clear it before. Raises TypeError for parameters not of float32.
    """

    __slots__ = ("gradient", "parameters", "published", "vector")

    def __init__(self, module: nn.Module, acting: nn.Module) -> None:
        # A dict keeps the order and drops those of `module` that are also of `acting`.
        self.parameters = list(dict.fromkeys([*acting.parameters(), *module.parameters()]))
        others = {parameter.dtype for parameter in self.parameters} - {torch.float32}
        if others:
            raise TypeError(f"expected parameters of float32, got {others}")
        self.published = sum(parameter.numel() for parameter in acting.parameters())
        self.vector = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        self.gradient = torch.zeros_like(self.vector)
        offset = 0
        for parameter in self.parameters:
            part = slice(offset, offset + parameter.numel())
            parameter.data = self.vector[part].view_as(parameter)
            parameter.grad = self.gradient[part].view_as(parameter)
            offset = part.stop

    def publish(self) -> Array:
        """A copy of the acting parameters, float32 [published]."""
        copy: Array = self.vector[: self.published].cpu().numpy().astype(np.float32, copy=True)
        return copy

    def load(self, vector: Tensor) -> None:
        """Copies `vector` [P] into all parameters at once."""
        self.vector.copy_(vector)


class FlatAdam:
    """Adam (Kingma and Ba, 2015, arXiv:1412.6980) over one vector, with its gradient clipped by its norm.

    One fused kernel unscales, updates both moments and steps. A gradient that is not finite changes nothing. On a CPU
    the norm is read at once; elsewhere it stays on the device, and no step waits for it.
    """

    def __init__(self, flat: FlatParameters, learning_rate: float, max_norm: float, eps: float) -> None:
        self.learning_rate, self.max_norm, self.eps = learning_rate, max_norm, eps
        self._parameters, self._gradients = [flat.vector], [flat.gradient]
        self.moment_1, self.moment_2 = torch.zeros_like(flat.vector), torch.zeros_like(flat.vector)
        self.steps = torch.zeros((), device=flat.vector.device)
        self._one = torch.ones_like(self.steps)
        self._on_cpu = flat.vector.device.type == "cpu"

    def step(self) -> Tensor | float:
        """Steps once; the norm of the gradient before it was clipped, on a CPU as a number."""
        norm: Tensor = torch.linalg.vector_norm(self._gradients[0])
        return self._step_now(norm) if self._on_cpu else self._step_unseen(norm)

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
        torch._fused_adam_(
            self._parameters,
            self._gradients,
            [self.moment_1],
            [self.moment_2],
            [],
            [self.steps],
            lr=self.learning_rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
            found_inf=lost,
        )
        if lost is not None:
            self.steps -= lost
