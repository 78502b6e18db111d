"""A learner's device and precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.policy.tensors import as_float32, as_tensor, usable_device

Precision: TypeAlias = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Compute:
    """The torch device, and the precision of forward passes; parameters and optimizer are always float32.

    "bfloat16" is mixed precision (Micikevicius et al., 2018, arXiv:1710.03740): matrix products are bfloat16, a
    network's outputs float32. It needs no loss scaling.
    """

    device: str = "cpu"
    precision: Precision = "float32"

    @property
    def not_compiled(self) -> str:
        """Why updates are not compiled; empty if they can be."""
        if torch.device(self.device).type != "cpu":
            return f"updates are compiled for CPUs only, and this learner is on {self.device}"
        if self.precision != "float32":
            return f"updates are compiled in float32 only, and this learner is in {self.precision}"
        return ""

    def autocast(self) -> torch.autocast | None:
        """Return the context for forward passes; None for float32."""
        if self.precision == "float32":
            return None
        # Releases of torch before late 2025 cache weights first cast without gradients for passes that want them:
        # github.com/pytorch/pytorch/issues/112583
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, cache_enabled=False)

    def prepared(self, module: Any) -> Any:
        """Move `module` to the device; in bfloat16, also cast its outputs to float32."""
        if self.precision != "float32":
            module.register_forward_hook(_outputs_as_float32)
        return module.to(usable_device(self.device))


ON_CPU = Compute()


def tensors_on(device: torch.device) -> Callable[[Array], Tensor]:
    """Return a function that makes an array a tensor on `device`, sharing its memory on a CPU if possible."""
    if device.type == "cpu":
        return as_tensor
    # From page-locked memory the copy is asynchronous.
    if device.type == "cuda":
        return lambda array: _page_locked(array).to(device, non_blocking=True)
    return lambda array: as_tensor(array).to(device)


def _page_locked(array: Array) -> Tensor:
    staged = torch.empty(array.shape, dtype=as_tensor(array[:0]).dtype, pin_memory=True)
    staged.numpy()[...] = array
    return staged


def _outputs_as_float32(_module: nn.Module, _inputs: Any, outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return as_float32(outputs)
    if type(outputs) is not tuple:
        return outputs
    return tuple(as_float32(one) if isinstance(one, Tensor) else one for one in outputs)
