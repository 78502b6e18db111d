"""Values of observations in chunks, so that a row's value does not depend on the other rows of the batch.

A worker with few rows therefore computes the same values as a learner with many, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marlflow.base.arrays import Array

# On a CPU, the last bit of a value can depend on the number of rows; for multiples of 16 it does not. The maximum
# bounds the memory of one forward pass.
CHUNK_ROWS = 16_384
WHOLE_ROWS = 16


def value_chunks(obs: Array) -> Iterator[Array]:
    """Yield `obs` [N, ...] in chunks of up to 16,384 rows, the last zero-padded to a multiple of 16."""
    whole = len(obs) - len(obs) % WHOLE_ROWS
    for start in range(0, whole, CHUNK_ROWS):
        yield obs[start : min(start + CHUNK_ROWS, whole)]
    if rest := len(obs) - whole:
        last = np.zeros((WHOLE_ROWS, *obs.shape[1:]), obs.dtype)
        last[:rest] = obs[whole:]
        yield last


@dataclass(frozen=True, slots=True)
class ModuleCritic:
    """Estimates by a torch module, in chunks."""

    module: Callable[..., Tensor]
    tensor: Callable[[Array], Tensor]
    autocast: torch.autocast | None = None

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """Return the values, float32 [N], of `obs` [N, ...] and, if it is recurrent, `memory` [N, ...]."""
        columns = (obs,) if memory is None else (obs, memory)
        return chunked_values(self.module, columns, self.tensor, self.autocast)


def chunked_values(
    critic: Callable[..., Tensor],
    columns: Sequence[Array],
    tensor: Callable[[Array], Tensor],
    autocast: torch.autocast | None = None,
) -> Array:
    """Return the critic's values, float32 [N], of `columns` [N, ...], computed in chunks."""
    chunks = [np.zeros(0, np.float32)]
    with torch.inference_mode():
        for chunk in zip(*map(value_chunks, columns), strict=True):
            with autocast or nullcontext():
                values = critic(*map(tensor, chunk))
            chunks.append(values.float().cpu().numpy())
    return np.concatenate(chunks)[: len(columns[0])]
