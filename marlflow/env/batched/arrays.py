"""Arrays of a batched environment as numpy arrays, without a copy on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from marlflow.base.arrays import Array


def as_numpy(array: Any) -> Array:
    """Return `array`, of numpy or of a library with DLPack such as torch and jax, as a numpy array.

    Shares the memory of an array on a CPU; copies one on a GPU.
    """
    if type(array) is np.ndarray:
        return array
    if not hasattr(array, "__dlpack__"):
        return np.asarray(array)
    if getattr(array, "requires_grad", False):
        array = array.detach()
    on_cpu = array.__dlpack_device__()[0] == _CPU
    if not on_cpu and hasattr(array, "cpu"):
        # torch exports no array of a GPU to another device.
        array, on_cpu = array.cpu(), True
    shared: Array = np.from_dlpack(array) if on_cpu else np.asarray(array)
    return shared


# kDLCPU of DLPack's DLDeviceType.
_CPU = 1
