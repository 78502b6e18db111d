"""Q-learning over sequences, on a squashed scale: targets, errors and a sequence's priority.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", 2019,
https://openreview.net/forum?id=r1lyTjAqYX, section 2.3. Illegal actions are in no target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marlflow.losses.q_learning import double_q_learning_target


def squash(value: Tensor, epsilon: float) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x, which brings returns of any size to one scale.

    Pohlen et al., "Observe and look further", 2018, https://arxiv.org/abs/1805.11593, section 3.2

    Args:
        value: of any shape.
        epsilon: keeps the inverse from growing without bound, above 0.
    """
    return value.sign() * ((value.abs() + 1.0).sqrt() - 1.0) + epsilon * value


def unsquash(squashed: Tensor, epsilon: float) -> Tensor:
    """The inverse of `squash`, in a form that loses no digits near 0 (Pohlen et al., 2018, proposition A.2).

    Args:
        squashed: of any shape.
        epsilon: that of `squash`.
    """
    size = squashed.abs()
    shifted = size + 1.0 + epsilon
    # sqrt(|x| + 1), as the difference of two nearly equal roots over 2 epsilon would be, were it computed so.
    root = 2.0 * shifted / ((1.0 + 4.0 * epsilon * shifted).sqrt() + 1.0)
    return squashed.sign() * (root - 1.0) * (root + 1.0)


def squashed_double_q_target(
    r_t: Tensor, discount_t: Tensor, q_t_selector: Tensor, q_t_value: Tensor, mask_t: Tensor | None, epsilon: float
) -> Tensor:
    """Double Q-learning's n-step targets, [S, L], where networks say squashed values (section 2.3).

    Args:
        r_t: discounted sums of the rewards of each row's window, [S, L].
        discount_t: what the value of the observation after the window is multiplied by, [S, L]; 0 after termination.
        q_t_selector: the trained network's squashed values of the observation after the window, [S, L, A].
        q_t_value: the target network's, [S, L, A].
        mask_t: legal actions there, bool [S, L, A], or None if all are. A row without one has discount 0.
        epsilon: that of `squash`.
    """
    # The choice of the next action is the same on either scale: squashing keeps the order.
    value = double_q_learning_target(r_t, discount_t, q_t_selector, unsquash(q_t_value, epsilon), mask_t)
    return squash(value, epsilon)


def after_windows(values: Tensor, following: Tensor) -> Tensor:
    """What stands at the step after each row's window, [S, L, ...].

    Args:
        values: by step, [S, L + 1, ...].
        following: at which step the window of each row has ended, int64 [S, L].
    """
    index = following.view(*following.shape, *[1] * (values.dim() - 2))
    return values.gather(1, index.expand(*following.shape, *values.shape[2:]))


def mean_over_sequences(loss: Tensor, trained: Tensor, weight: Tensor) -> Tensor:
    """The mean over sequences of the sum over their rows, each over the longest length there can be; a scalar.

    A row counts alike in a short sequence and in a long one, and whichever other sequences it comes with.

    Args:
        loss: of each row, [S, L].
        trained: where there is a row, bool [S, L].
        weight: importance weights of the sequences, [S].
    """
    return ((loss * trained).mean(1) * weight).mean()


def sequence_priority(error_size: Tensor, trained: Tensor, max_share: float) -> Tensor:
    """What a sequence is worth drawing again, [S]: eta max |error| + (1 - eta) mean |error| (section 2.3).

    Args:
        error_size: how far each row's value lies from its target, at least 0, [S, L].
        trained: where there is a row, bool [S, L]; in each sequence at least once.
        max_share: eta, in [0, 1].
    """
    size = torch.where(trained, error_size, 0.0)
    mean = size.sum(1) / trained.sum(1)
    return max_share * size.amax(1) + (1.0 - max_share) * mean
