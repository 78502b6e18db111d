"""Distributional Q-learning on a fixed support of atoms (C51).

Bellemare et al., "A distributional perspective on reinforcement learning", 2017, https://arxiv.org/abs/1707.06887
"""

from __future__ import annotations

import torch
from torch import Tensor

from marlflow.losses.q_learning import greedy_action


def categorical_projection(r_t: Tensor, discount_t: Tensor, probability_t: Tensor, support: Tensor) -> Tensor:
    """Project the distribution of r + discount * z onto the support, [N, K] (equation 7).

    Mass beyond the support goes to its end atoms.

    Args:
        r_t: rewards or n-step sums, [N].
        discount_t: the next value's discount, [N]; 0 if terminated.
        probability_t: probabilities of the next value's atoms, [N, K].
        support: ascending, evenly spaced atoms, [K], K >= 2.
    """
    last, low = len(support) - 1, support[0]
    gap = (support[-1] - low) / last
    position = ((r_t[:, None] + discount_t[:, None] * support - low) / gap).clamp(0.0, float(last))
    # Keep index + 1 inside the support when the position is exactly the last atom.
    below = position.floor().clamp(max=last - 1.0)
    above_share = position - below
    index = below.long()
    projected = torch.zeros_like(position)
    projected.scatter_add_(-1, index, probability_t * (1.0 - above_share))
    return projected.scatter_add_(-1, index + 1, probability_t * above_share)


def categorical_q_learning_target(
    r_t: Tensor, discount_t: Tensor, q_t_selector: Tensor, logits_t: Tensor, support: Tensor, mask_t: Tensor | None
) -> Tensor:
    """Compute projected target distributions, [N, K], one-step or n-step (algorithm 1).

    This is double Q-learning (https://arxiv.org/abs/1509.06461) if the trained network gives `q_t_selector`.

    Args:
        r_t: rewards or n-step sums, [N].
        discount_t: the next value's discount, [N]; 0 if terminated.
        q_t_selector: values that choose the next action, [N, A].
        logits_t: the target network's next logits, [N, A, K].
        support: the atoms, [K].
        mask_t: legal next actions, bool [N, A]; None: all. Rows without any have discount 0.
    """
    probability_t = atoms_of(logits_t, greedy_action(q_t_selector, mask_t)).softmax(-1)
    return categorical_projection(r_t, discount_t, probability_t, support).detach()


def categorical_divergence(logits_tm1: Tensor, target_tm1: Tensor) -> Tensor:
    """Compute the KL divergence of each row's distribution from its target, [N], >= 0 up to rounding.

    Its gradient equals the cross-entropy's. A priority in Hessel et al., 2018, https://arxiv.org/abs/1710.02298

    Args:
        logits_tm1: atom logits of the action taken, [N, K], with gradient.
        target_tm1: target probabilities, [N, K].
    """
    # xlogy makes 0 * log(0) equal 0; the plain product would be NaN.
    log_ratio = torch.xlogy(target_tm1, target_tm1) - target_tm1 * logits_tm1.log_softmax(-1)
    return log_ratio.sum(-1)


def atoms_of(logits: Tensor, action: Tensor) -> Tensor:
    """Select one action's atoms per row, [N, K], from `logits` [N, A, K]; `action` is int64 [N]."""
    index = action[:, None, None].expand(-1, 1, logits.shape[-1])
    return logits.gather(1, index).squeeze(1)
