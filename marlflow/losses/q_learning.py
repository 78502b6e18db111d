"""Targets and errors of Q-learning. Illegal actions are in no maximum and no target."""

from __future__ import annotations

import torch
from torch import Tensor

_LOWEST = torch.finfo(torch.float32).min


def q_learning_target(r_t: Tensor, discount_t: Tensor, q_t: Tensor, mask_t: Tensor | None) -> Tensor:
    """One-step or n-step targets, [N], with the target network choosing and valuing the next action.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015, https://doi.org/10.1038/nature14236

    Args:
        r_t: rewards, or discounted sums of them over n steps, [N].
        discount_t: what the value of the next observation is multiplied by, [N]; 0 after termination.
        q_t: the target network's values of the next observation, [N, A].
        mask_t: legal next actions, bool [N, A], or None if all are. A row without one has discount 0.
    """
    return (r_t + discount_t * _legal(q_t, mask_t).amax(-1)).detach()


def double_q_learning_target(
    r_t: Tensor, discount_t: Tensor, q_t_selector: Tensor, q_t_value: Tensor, mask_t: Tensor | None
) -> Tensor:
    """One-step or n-step targets, [N], with one network choosing the next action and another valuing it.

    van Hasselt et al., "Deep reinforcement learning with double Q-learning", 2016, https://arxiv.org/abs/1509.06461

    Args:
        r_t: rewards, or discounted sums of them over n steps, [N].
        discount_t: what the value of the next observation is multiplied by, [N]; 0 after termination.
        q_t_selector: the trained network's values of the next observation, [N, A].
        q_t_value: the target network's values of the next observation, [N, A].
        mask_t: legal next actions, bool [N, A], or None if all are. A row without one has discount 0.
    """
    selected = greedy_action(q_t_selector, mask_t).unsqueeze(-1)
    return (r_t + discount_t * q_t_value.gather(-1, selected).squeeze(-1)).detach()


def greedy_action(q_t: Tensor, mask_t: Tensor | None) -> Tensor:
    """The legal action of the highest value in each row, int64 [N].

    Args:
        q_t: action values, [N, A].
        mask_t: legal actions, bool [N, A], or None if all are; of a row without one, any.
    """
    return _legal(q_t, mask_t).argmax(-1)


def td_error(q_tm1: Tensor, a_tm1: Tensor, target_tm1: Tensor) -> Tensor:
    """How far each row's target lies above the value of its action, [N].

    Args:
        q_tm1: the trained network's values, [N, A]; gradients flow here alone.
        a_tm1: the actions taken, int64 [N].
        target_tm1: what their values should have been, [N].
    """
    return target_tm1 - q_tm1.gather(-1, a_tm1.unsqueeze(-1)).squeeze(-1)


def huber_loss(error: Tensor, delta: float) -> Tensor:
    """Half the squared error where it is at most `delta`, linear beyond, [N].

    Huber, "Robust estimation of a location parameter", 1964, https://doi.org/10.1214/aoms/1177703732

    Args:
        error: errors of any sign, [N].
        delta: the size of error at which the gradient stops growing.
    """
    size = error.abs()
    inner = size.clamp(max=delta)
    return inner * (size - 0.5 * inner)


def _legal(q: Tensor, mask: Tensor | None) -> Tensor:
    return q if mask is None else q.masked_fill(~mask, _LOWEST)
