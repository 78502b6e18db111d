"""Means over the agents of joint rows that are present."""

from __future__ import annotations

from torch import Tensor


def mean_over_present(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean over joint rows, a scalar, of the mean over the present agents of each row (0 if none is).

    Rows weigh equally, so the mean over shares of a minibatch is that of the whole. Values of absent agents get no
    gradient, and may be anything.

    Args:
        values: one for each agent, [B, K], with gradient.
        present: which agents count, bool [B, K].
    """
    return row_means(values, present).mean()


def row_means(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean over the present agents of each row, [B]; 0 if none is.

    Args:
        values: one for each agent, [B, K], with gradient.
        present: which agents count, bool [B, K].
    """
    return values.masked_fill(~present, 0.0).sum(1) / present.sum(1).clamp(min=1)
