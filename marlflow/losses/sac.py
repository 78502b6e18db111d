"""Soft Actor-Critic.

Haarnoja et al., "Soft actor-critic algorithms and applications", 2018, https://arxiv.org/abs/1812.05905; Christodoulou,
"Soft actor-critic for discrete action settings", 2019, https://arxiv.org/abs/1910.07207. The temperature is in
reward per nat of entropy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marlflow.losses.q_learning import legal


def soft_q_target(r_t: Tensor, discount_t: Tensor, q_t: Tensor, logp_t: Tensor, temperature: Tensor) -> Tensor:
    """Compute one-step or n-step targets, [N], for a sampled next action (Haarnoja, equations 3 and 5).

    Args:
        r_t: rewards or n-step sums, [N].
        discount_t: the next soft value's discount, [N]; 0 if terminated.
        q_t: target critics' values of the next action, [K, N]; their minimum is used.
        logp_t: log-probability of the next action, [N].
        temperature: a scalar.
    """
    return (r_t + discount_t * (q_t.amin(0) - temperature * logp_t)).detach()


def soft_policy_loss(q_tm1: Tensor, logp_tm1: Tensor, temperature: Tensor) -> Tensor:
    """Compute the policy's loss, [N] (Haarnoja, equation 9).

    Args:
        q_tm1: critics' values of the action sampled now, [K, N], with gradient to it.
        logp_tm1: log-probability of that action, [N], with gradient.
        temperature: a scalar.
    """
    return temperature.detach() * logp_tm1 - q_tm1.amin(0)


def temperature_loss(log_temperature: Tensor, short_of_target: Tensor) -> Tensor:
    """Compute the loss of the log temperature, [N] (Haarnoja, equation 18, as in the authors' code).

    Args:
        log_temperature: a scalar, with gradient, also called log_alpha; rises while entropy is below target.
        short_of_target: the target entropy minus the entropy, or plus a sampled action's log-probability, [N].
    """
    # The authors' code has the log temperature where the paper has the temperature.
    return -log_temperature * short_of_target.detach()


def legal_probabilities(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute probabilities and log-probabilities of actions, [N, A] each; both 0 for illegal ones.

    Args:
        logits: the policy's, [N, A].
        mask: legal actions, bool [N, A]; None: all. Rows without any give zeros.
    """
    if mask is None:
        logp = torch.log_softmax(logits, -1)
        return logp.exp(), logp
    logp = torch.log_softmax(legal(logits, mask), -1)
    # Zeros in both factors keep illegal actions out of every expectation and of the entropy.
    return logp.exp().masked_fill(~mask, 0.0), logp.masked_fill(~mask, 0.0)


def expected_soft_q_target(
    r_t: Tensor, discount_t: Tensor, q_t: Tensor, p_t: Tensor, logp_t: Tensor, temperature: Tensor
) -> Tensor:
    """Compute one-step or n-step targets, [N], expected over next actions (Christodoulou, equation 10).

    Args:
        r_t: rewards or n-step sums, [N].
        discount_t: the next soft value's discount, [N]; 0 if terminated.
        q_t: target critics' next values, [K, N, A]; their minimum is used.
        p_t: probabilities of next actions, [N, A]; 0 if illegal.
        logp_t: their logarithms, [N, A]; finite if illegal.
        temperature: a scalar.
    """
    soft_value = (p_t * (q_t.amin(0) - temperature * logp_t)).sum(-1)
    return (r_t + discount_t * soft_value).detach()


def expected_soft_policy_loss(q_tm1: Tensor, p_tm1: Tensor, logp_tm1: Tensor, temperature: Tensor) -> Tensor:
    """Compute the policy's loss, [N], expected over actions (Christodoulou, equation 12).

    Args:
        q_tm1: critics' values, [K, N, A].
        p_tm1: probabilities of actions, [N, A], with gradient; 0 if illegal.
        logp_tm1: their logarithms, [N, A], with gradient; finite if illegal.
        temperature: a scalar.
    """
    return (p_tm1 * (temperature.detach() * logp_tm1 - q_tm1.amin(0).detach())).sum(-1)
