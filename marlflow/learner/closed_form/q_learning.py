"""The (double) Q-learning loss and its gradient in closed form, with numpy; equal to `losses.q_learning`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.float32]


class TransitionRows(NamedTuple):
    """A minibatch of N transitions; columns are [N], except for the mask."""

    action: NDArray[np.int64]
    r_t: Vector
    discount_t: Vector
    weight: Vector
    mask_t: NDArray[np.bool_] | None
    """Legal next actions, [N, A]; None if all are legal."""


def q_learning_gradient(
    q_tm1: NDArray[Any], q_t_selector: NDArray[Any], q_t_value: NDArray[Any], rows: TransitionRows, huber_delta: float
) -> tuple[Mapping[str, float], Vector, Vector]:
    """Compute the terms of the loss, its gradient by `q_tm1` [N, A], and each row's TD error [N].

    Mnih et al., 2015, https://doi.org/10.1038/nature14236; van Hasselt et al., 2016, https://arxiv.org/abs/1509.06461

    Args:
        q_tm1: the online network's values, [N, A].
        q_t_selector: the next observation's values by which the action is chosen, [N, A].
        q_t_value: the next observation's values by the target network, [N, A].
        rows: the minibatch.
        huber_delta: the error above which the loss is linear.
    """
    every, taken = np.arange(len(q_tm1)), rows.action
    legal = q_t_selector if rows.mask_t is None else np.where(rows.mask_t, q_t_selector, -np.inf)
    target = rows.r_t + rows.discount_t * q_t_value[every, legal.argmax(1)]
    error = target - q_tm1[every, taken]
    loss, d_taken = huber_gradient(error, rows.weight, huber_delta)
    gradient = np.zeros_like(q_tm1)
    gradient[every, taken] = d_taken
    terms = {"td": loss, "td_error_mean": float(np.abs(error).mean()), "q_mean": float(q_tm1.mean())}
    return terms, gradient, error


def huber_gradient(error: NDArray[Any], weight: Vector, delta: float) -> tuple[float, Vector]:
    """Compute the weighted mean of the Huber losses of `error` [N], and its gradient by the predictions, [N].

    Args:
        error: target minus prediction of each row, [N].
        weight: importance weights, [N].
        delta: the error above which the loss is linear.
    """
    limited = np.minimum(np.maximum(error, -delta), delta)
    share = weight / np.float32(len(error))
    # The Huber loss, quadratic inside and linear outside: limited * (error - limited / 2) is both.
    loss = np.add.reduce(limited * (error - 0.5 * limited) * share)
    gradient: Vector = -limited * share
    return float(loss), gradient
