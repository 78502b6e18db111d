"""Between arrays and tensors: observations in, and a network's parameters as one float32 vector, and back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.batch import Array
from marlflow.base.errors import WeightsMismatch


def as_tensor(array: Array, device: str | None = None) -> Tensor:
    """`array` as a tensor, sharing its memory unless it is read-only (as arrays from an object store are).

    With `device` on that one, None is the CPU.
    """
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor if device is None else tensor.to(device)


def as_array(tensor: Tensor) -> Array:
    """`tensor` as an array, sharing its memory if that is the CPU's."""
    array: Array = tensor.numpy() if tensor.is_cpu else tensor.cpu().numpy()
    return array


def parameter_count(module: nn.Module) -> int:
    """How many numbers the parameters of `module` are."""
    return sum(parameter.numel() for parameter in module.parameters())


def in_flat_order(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of `module` as they stand in a flat vector: first those that do not learn, then the others."""
    return sorted(module.parameters(), key=lambda parameter: parameter.requires_grad)


def read_flat(module: nn.Module) -> Array:
    """A copy of all parameters of `module`, in flat order, as one float32 vector."""
    with torch.no_grad():
        parts = [parameter.reshape(-1).cpu().numpy() for parameter in in_flat_order(module)]
    return np.concatenate(parts, dtype=np.float32)


def write_flat(module: nn.Module, flat: Array) -> None:
    """Replaces all parameters of `module` by those of `flat`; raises WeightsMismatch if it has another size."""
    expected = parameter_count(module)
    if flat.shape != (expected,):
        raise WeightsMismatch(
            f"expected a flat vector of {expected} parameters for {type(module).__name__}, got shape {flat.shape}: the "
            "weights are of another network; build actor and learner from the same spaces, model and settings"
        )
    source, offset = as_tensor(flat), 0
    with torch.no_grad():
        for parameter in in_flat_order(module):
            parameter.copy_(source[offset : offset + parameter.numel()].view_as(parameter))
            offset += parameter.numel()
