"""A closed-form gradient of many rows, block by block: a block's activations stay in a core's cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

BLOCK_ROWS = 2_048
"""Most rows at a time; with 64 units per layer, a layer's output has half a megabyte."""


def in_blocks(
    module: nn.Module,
    rows: Mapping[str, Tensor],
    write: Callable[[Mapping[str, Tensor], float], Mapping[str, float]],
) -> dict[str, float]:
    """Write the gradients of a mean over all `rows`, columns [N, ...]; return the terms of the loss.

    `write(block, share)` writes the gradients of the mean over some rows, times `share`, into the `.grad` of the
    parameters of `module`, and returns the terms, times `share`.
    """
    count = len(next(iter(rows.values())))
    number = -(-count // BLOCK_ROWS)
    if number <= 1:
        return dict(write(rows, 1.0))
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    sums: list[Tensor] = []
    terms: dict[str, float] = {}
    for index in range(number):
        start, stop = index * count // number, (index + 1) * count // number
        block = {name: column[start:stop] for name, column in rows.items()}
        for name, term in write(block, (stop - start) / count).items():
            terms[name] = terms.get(name, 0.0) + term
        if index:
            torch._foreach_add_(sums, gradients)
        else:
            sums = [gradient.clone() for gradient in gradients]
    torch._foreach_copy_(gradients, sums)
    return terms
