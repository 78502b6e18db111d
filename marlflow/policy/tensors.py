"""Conversion between numpy arrays, tensors and flat parameter vectors, and the number of a network's parameters."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid, WeightsMismatch

# More than any machine has; used for sizes that overflow.
UNCOUNTABLE = 2**62


def usable_device(device: str) -> torch.device:
    """Return a device; raises ConfigInvalid, with the machine, if it is a GPU and torch sees none here."""
    found = torch.device(device)
    if found.type == "cuda" and not torch.cuda.is_available():
        process = f"a process on {socket.gethostname()} is to compute on {device}"
        remedy = "install a torch with CUDA, or set its device=cpu"
        raise ConfigInvalid([f"{process}, and torch {torch.__version__} sees no GPU there; {remedy}"])
    return found


def as_tensor(array: Array, device: str | None = None) -> Tensor:
    """Convert to a tensor on `device` (None: CPU), sharing memory where possible."""
    # Arrays from Ray's object store are read-only, which torch cannot share.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor if device is None else tensor.to(device)


def as_array(tensor: Tensor) -> Array:
    """Convert to an array, sharing memory with a CPU tensor."""
    array: Array = tensor.numpy() if tensor.is_cpu else tensor.cpu().numpy()
    return array


def as_float32(outputs: Tensor) -> Tensor:
    """Convert a network's outputs in bfloat16; others stay as they are."""
    return outputs.float() if outputs.dtype == torch.bfloat16 else outputs


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator meanwhile: plain layers, such as `nn.Linear` in a user's network, draw from it."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def parameter_count(module: nn.Module) -> int:
    """Count the numbers in a module's parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def in_flat_order(module: nn.Module) -> list[nn.Parameter]:
    """Order a module's parameters as in a flat vector: untrained ones first."""
    return sorted(module.parameters(), key=lambda parameter: parameter.requires_grad)


def read_flat(module: nn.Module) -> Array:
    """Copy all parameters of a module, in flat order, to one float32 vector."""
    with torch.no_grad():
        parts = [parameter.reshape(-1).cpu().numpy() for parameter in in_flat_order(module)]
    return np.concatenate(parts, dtype=np.float32)


def write_flat(module: nn.Module, flat: Array) -> None:
    """Replace all parameters of a module; raises WeightsMismatch if the size differs."""
    expected = parameter_count(module)
    if flat.shape != (expected,):
        raise WeightsMismatch(
            f"expected a flat vector of {expected} parameters for {type(module).__name__}, got shape {flat.shape}: the "
            "weights are of another network; build actor and learner from the same spaces, model and settings"
        )
    # copy_ moves each slice to the parameter's own device.
    source, offset = as_tensor(flat), 0
    with torch.no_grad():
        for parameter in in_flat_order(module):
            parameter.copy_(source[offset : offset + parameter.numel()].view_as(parameter))
            offset += parameter.numel()


def parameters_of(build: Callable[[], Any]) -> int | None:
    """Count the parameters of the network that `build` returns, without allocating memory.

    Returns None if `build` needs real memory. Raises ConfigInvalid from `build`.
    """
    counted: dict[int, nn.Parameter] = {}

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter) -> None:
        counted[id(parameter)] = parameter

    # An actor may keep its network in an attribute of any name; the hook sees every parameter registered.
    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            network = build()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        # Torch reports an overflow for sizes whose product exceeds 64 bits. Other errors come from code that reads a
        # tensor's values, which do not exist on the meta device.
        return UNCOUNTABLE if "overflow" in str(error) else None
    finally:
        hook.remove()
    parameters = network.parameters() if isinstance(network, nn.Module) else counted.values()
    return sum(parameter.numel() for parameter in parameters)
