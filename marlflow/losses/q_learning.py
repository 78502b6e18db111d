"""Q-learning with action masks: targets and errors of rows, of sequences (R2D2), and of distributions (C51).

On sequences with value rescaling: Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement
Learning", 2019, https://openreview.net/forum?id=r1lyTjAqYX, section 2.3. On a fixed support of atoms: Bellemare et al.,
"A distributional perspective on reinforcement learning", 2017, https://arxiv.org/abs/1707.06887
"""

from __future__ import annotations

import torch
from torch import Tensor

# Finite, because -inf times a discount of 0, and the softmax of a row without a legal action, would be NaN.
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
    return (r_t + discount_t * legal(q_t, mask_t).amax(-1)).detach()


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
    selected = greedy_action(q_t_selector, mask_t)
    return (r_t + discount_t * taken_value(q_t_value, selected)).detach()


def greedy_action(q_t: Tensor, mask_t: Tensor | None) -> Tensor:
    """Choose the legal action of the highest value per row, int64 [N].

    Args:
        q_t: action values, [N, A].
        mask_t: legal actions, bool [N, A]; None: all. Rows without any get an arbitrary action.
    """
    return legal(q_t, mask_t).argmax(-1)


def taken_value(q: Tensor, action: Tensor) -> Tensor:
    """Select one action's value per row, [..., N], from `q` [..., N, A]; `action` is int64 [..., N]."""
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def td_error(q_tm1: Tensor, a_tm1: Tensor, target_tm1: Tensor) -> Tensor:
    """Compute each row's target minus the value of its action, [N].

    Args:
        q_tm1: the trained network's values, [N, A], with gradient.
        a_tm1: actions taken, int64 [N].
        target_tm1: target values, [N].
    """
    return target_tm1 - taken_value(q_tm1, a_tm1)


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


def legal(q: Tensor, mask: Tensor | None) -> Tensor:
    """Return values or logits [N, A], the lowest number for illegal actions; `mask` is bool [N, A], None: all legal."""
    return q if mask is None else q.masked_fill(~mask, _LOWEST)


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
    """Compute KL(target || distribution) of each row, [N], >= 0 up to rounding.

    Its gradient equals the cross-entropy's. Hessel et al., 2018, https://arxiv.org/abs/1710.02298, use it as priority.

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
