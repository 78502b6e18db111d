"""Q-learning on sequences with value rescaling (R2D2): targets, loss and sequence priorities.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", 2019,
https://openreview.net/forum?id=r1lyTjAqYX, section 2.3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marlflow.losses.q_learning import double_q_learning_target


def squash(value: Tensor, epsilon: float) -> Tensor:
    """Rescale values by h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x.

    Pohlen et al., "Observe and look further", 2018, https://arxiv.org/abs/1805.11593, section 3.2

    Args:
        value: any shape.
        epsilon: > 0; bounds the slope of the inverse.
    """
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + epsilon * value


def unsquash(squashed: Tensor, epsilon: float) -> Tensor:
    """Invert `squash` (Pohlen et al., 2018, proposition A.2).

    Args:
        squashed: any shape.
        epsilon: as in `squash`.
    """
    size = squashed.abs()
    shifted = size + 1.0 + epsilon
    # sqrt(|x| + 1). The textbook form subtracts two nearly equal roots and divides by 2 epsilon, which cancels digits.
    root = 2.0 * shifted / ((1.0 + 4.0 * epsilon * shifted).sqrt() + 1.0)
    return squashed.sign() * (root - 1.0) * (root + 1.0)


def squashed_double_q_target(
    r_t: Tensor, discount_t: Tensor, q_t_selector: Tensor, q_t_value: Tensor, mask_t: Tensor | None, epsilon: float
) -> Tensor:
    """Compute double Q-learning's n-step targets, [S, L], for networks that output squashed values.

    Args:
        r_t: n-step discounted sums of rewards, [S, L].
        discount_t: discount after n steps, [S, L]; 0 if terminated.
        q_t_selector: the trained network's squashed values after n steps, [S, L, A].
        q_t_value: the target network's, [S, L, A].
        mask_t: legal actions there, bool [S, L, A]; None: all. Rows without any have discount 0.
        epsilon: as in `squash`.
    """
    # The selector can stay squashed: squashing keeps the order of actions.
    value = double_q_learning_target(r_t, discount_t, q_t_selector, unsquash(q_t_value, epsilon), mask_t)
    return squash(value, epsilon)


def after_windows(values: Tensor, following: Tensor) -> Tensor:
    """Gather the entries at the step after each row's n steps, [S, L, ...].

    Args:
        values: by step, [S, L + 1, ...].
        following: index of that step per row, int64 [S, L].
    """
    index = following.view(*following.shape, *[1] * (values.dim() - 2))
    return values.gather(1, index.expand(*following.shape, *values.shape[2:]))


def mean_over_sequences(loss: Tensor, trained: Tensor, weight: Tensor) -> Tensor:
    """Average over sequences the sum of their row losses divided by L; a scalar.

    Args:
        loss: per row, [S, L].
        trained: which rows exist, bool [S, L].
        weight: importance weights of the sequences, [S].
    """
    # Dividing by L, not by each sequence's own length, weighs rows of short and long sequences equally.
    return ((loss * trained).mean(1) * weight).mean()


def sequence_priority(error_size: Tensor, trained: Tensor, max_share: float) -> Tensor:
    """Compute replay priorities of sequences, [S]: eta max |error| + (1 - eta) mean |error|.

    Args:
        error_size: absolute TD errors, [S, L].
        trained: which rows exist, bool [S, L]; at least one per sequence.
        max_share: eta, in [0, 1].
    """
    size = torch.where(trained, error_size, 0.0)
    mean = size.sum(1) / trained.sum(1)
    return max_share * size.amax(1) + (1.0 - max_share) * mean
