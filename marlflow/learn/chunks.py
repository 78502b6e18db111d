"""Observations in chunks to be valued one after the other.

How the products of a row are summed on a CPU, and with it the last bit of its value, depends on how many rows there
are: where these are few, or do not fill the width of a vector. Chunks of whole multiples do not have that, so a worker
with a few rows finds the same values as a learner with many.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from marlflow.base.batch import Array

CHUNK_ROWS = 16_384
WHOLE_ROWS = 16


def value_chunks(obs: Array) -> Iterator[Array]:
    """All rows of `obs` [N, ...], in order, up to 16,384 at a time; behind the last, zeros fill up a multiple of 16."""
    whole = len(obs) - len(obs) % WHOLE_ROWS
    for start in range(0, whole, CHUNK_ROWS):
        yield obs[start : min(start + CHUNK_ROWS, whole)]
    if rest := len(obs) - whole:
        last = np.zeros((WHOLE_ROWS, *obs.shape[1:]), obs.dtype)
        last[:rest] = obs[whole:]
        yield last
