"""The device of a learner's parameters and rows, and the precision of its networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from marlflow.base.batch import Array
from marlflow.policy.tensors import as_tensor

Precision: TypeAlias = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Compute:
    """A torch device, and the precision of forward passes; parameters and optimizer are float32 in any case.

    With bfloat16 the networks' matrix products are bfloat16, and the outputs of a network are float32 again: the
    arithmetic of losses is not rounded. (Micikevicius et al., 2018, arXiv:1710.03740; bfloat16 needs no loss scale.)
    """

    device: str = "cpu"
    precision: Precision = "float32"

    def autocast(self) -> torch.autocast | None:
        """The context for forward passes; None for float32."""
        if self.precision == "float32":
            return None
        # Releases of torch before late 2025 cache weights first cast without gradients for passes that want them:
        # github.com/pytorch/pytorch/issues/112583
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, cache_enabled=False)

    def prepared(self, module: Any) -> Any:
        """`module`, moved to the device; below float32 its outputs are made float32."""
        if self.precision != "float32":
            module.register_forward_hook(_outputs_as_float32)
        return module.to(torch.device(self.device))


ON_CPU = Compute()
"""In float32 on a CPU."""


def tensors_on(device: torch.device) -> Callable[[Array], Tensor]:
    """A function from an array to a tensor on `device`; on a CPU the tensor shares the array's memory where it may.

    To a GPU it goes through page-locked memory, so that the call returns before it has arrived.
    """
    if device.type == "cpu":
        return as_tensor
    if device.type == "cuda":
        return lambda array: _page_locked(array).to(device, non_blocking=True)
    return lambda array: as_tensor(array).to(device)


def _page_locked(array: Array) -> Tensor:
    staged = torch.empty(array.shape, dtype=as_tensor(array[:0]).dtype, pin_memory=True)
    staged.numpy()[...] = array
    return staged


def _outputs_as_float32(_module: nn.Module, _inputs: Any, outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return _as_float32(outputs)
    return tuple(map(_as_float32, outputs)) if type(outputs) is tuple else outputs


def _as_float32(output: Any) -> Any:
    return output.float() if isinstance(output, Tensor) and output.dtype == torch.bfloat16 else output
