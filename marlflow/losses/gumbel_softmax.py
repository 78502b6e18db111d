"""Discrete actions with a gradient: the straight-through Gumbel-softmax estimator.

Jang et al., "Categorical reparameterization with Gumbel-softmax", 2017, https://arxiv.org/abs/1611.01144.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Finite, because -inf would make the softmax of a row without a legal action NaN.
_LOWEST = torch.finfo(torch.float32).min


def gumbel_noise(normal: Tensor) -> Tensor:
    """Return standard Gumbel numbers -log(-log Phi(z)) of standard normal numbers `normal`, of any shape."""
    # The logarithm of Phi is accurate in both tails, where Phi itself rounds to 0 or 1.
    return -torch.log(-torch.special.log_ndtr(normal))


def straight_through_sample(logits: Tensor, mask: Tensor | None, gumbel: Tensor, temperature: float) -> Tensor:
    """Sample one-hot actions, [N, A], with the gradient of a softmax (section 2.2).

    Args:
        logits: the policy's, [N, A], with gradient.
        mask: legal actions, bool [N, A]; None: all.
        gumbel: standard Gumbel noise, [N, A].
        temperature: of the softmax; a lower one has less bias and more variance.
    """
    soft = torch.softmax(_legal(logits + gumbel, mask) / temperature, -1)
    return one_hot_best(logits + gumbel, mask) + (soft - soft.detach())


def one_hot_best(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the legal action with the highest score, one-hot float32 [N, A].

    Args:
        scores: logits (for the greedy action), or logits with Gumbel noise (for a sample), [N, A].
        mask: legal actions, bool [N, A]; None: all.
    """
    return functional.one_hot(_legal(scores, mask).argmax(-1), scores.shape[-1]).float()


def _legal(scores: Tensor, mask: Tensor | None) -> Tensor:
    return scores if mask is None else scores.masked_fill(~mask, _LOWEST)
