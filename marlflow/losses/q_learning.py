"""Q-learning targets and errors, with action masks."""

from __future__ import annotations

import torch
from torch import Tensor

# Finite, because -inf times a discount of 0 would be NaN.
_LOWEST = torch.finfo(torch.float32).min


def q_learning_target(r_t: Tensor, discount_t: Tensor, q_t: Tensor, mask_t: Tensor | None) -> Tensor:
    """Compute one-step or n-step targets, [N], by the target network's maximum.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015, https://doi.org/10.1038/nature14236

    Args:
        r_t: rewards or n-step sums, [N].
        discount_t: the next value's discount, [N]; 0 if terminated.
        q_t: the target network's next values, [N, A].
        mask_t: legal next actions, bool [N, A]; None: all. Rows without any have discount 0.
    """
    return (r_t + discount_t * _legal(q_t, mask_t).amax(-1)).detach()


def double_q_learning_target(
    r_t: Tensor, discount_t: Tensor, q_t_selector: Tensor, q_t_value: Tensor, mask_t: Tensor | None
) -> Tensor:
    """Compute one-step or n-step targets, [N]; one network chooses the next action, another values it.

    van Hasselt et al., "Deep reinforcement learning with double Q-learning", 2016, https://arxiv.org/abs/1509.06461

    Args:
        r_t: rewards or n-step sums, [N].
        discount_t: the next value's discount, [N]; 0 if terminated.
        q_t_selector: the trained network's next values, [N, A].
        q_t_value: the target network's values, [N, A].
        mask_t: legal next actions, bool [N, A]; None: all. Rows without any have discount 0.
    """
    selected = greedy_action(q_t_selector, mask_t).unsqueeze(-1)
    return (r_t + discount_t * q_t_value.gather(-1, selected).squeeze(-1)).detach()


def greedy_action(q_t: Tensor, mask_t: Tensor | None) -> Tensor:
    """Choose the legal action of the highest value per row, int64 [N].

    Args:
        q_t: action values, [N, A].
        mask_t: legal actions, bool [N, A]; None: all. Rows without any get an arbitrary action.
    """
    return _legal(q_t, mask_t).argmax(-1)


def td_error(q_tm1: Tensor, a_tm1: Tensor, target_tm1: Tensor) -> Tensor:
    """Compute each row's target minus the value of its action, [N].

    Args:
        q_tm1: the trained network's values, [N, A], with gradient.
        a_tm1: actions taken, int64 [N].
        target_tm1: target values, [N].
    """
    return target_tm1 - q_tm1.gather(-1, a_tm1.unsqueeze(-1)).squeeze(-1)


def huber_loss(error: Tensor, delta: float) -> Tensor:
    """Compute half the squared error up to `delta` and linear beyond, [N].

    Huber, "Robust estimation of a location parameter", 1964, https://doi.org/10.1214/aoms/1177703732

    Args:
        error: errors, [N].
        delta: error size at which the gradient stops growing.
    """
    size = error.abs()
    inner = size.clamp(max=delta)
    return inner * (size - 0.5 * inner)


def _legal(q: Tensor, mask: Tensor | None) -> Tensor:
    return q if mask is None else q.masked_fill(~mask, _LOWEST)
