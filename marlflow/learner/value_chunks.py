"""Values of observations, chunk by chunk.

On a CPU the last bit of a row's value depends on the number of rows, where these are few or do not fill the width of a
vector. In chunks of a multiple of 16 rows it does not, so a worker with a few rows finds the same values as a learner
with many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from marlflow.base.batch import Array

CHUNK_ROWS = 16_384
WHOLE_ROWS = 16


def value_chunks(obs: Array) -> Iterator[Array]:
    """All rows of `obs` [N, ...], in order, up to 16,384 at a time; after the last, zeros fill up a multiple of 16."""
    whole = len(obs) - len(obs) % WHOLE_ROWS
    for start in range(0, whole, CHUNK_ROWS):
        yield obs[start : min(start + CHUNK_ROWS, whole)]
    if rest := len(obs) - whole:
        last = np.zeros((WHOLE_ROWS, *obs.shape[1:]), obs.dtype)
        last[:rest] = obs[whole:]
        yield last


def chunked_values(
    critic: Callable[..., Tensor],
    columns: Sequence[Array],
    tensor: Callable[[Array], Tensor],
    autocast: torch.autocast | None = None,
) -> Array:
    """The values that `critic` gives of `columns`, [N, ...] each, float32 [N], chunk by chunk."""
    found = [np.zeros(0, np.float32)]
    with torch.inference_mode():
        for chunk in zip(*map(value_chunks, columns), strict=True):
            with autocast or nullcontext():
                values = critic(*map(tensor, chunk))
            found.append(values.float().cpu().numpy())
    return np.concatenate(found)[: len(columns[0])]
