"""The terms of Soft Actor-Critic: rewards and the entropy of the policy, in the proportion of a temperature.

Haarnoja et al., "Soft actor-critic algorithms and applications", 2018, https://arxiv.org/abs/1812.05905; with the
expectation over Discrete actions in closed form, Christodoulou, "Soft actor-critic for discrete action settings", 2019,
https://arxiv.org/abs/1910.07207
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOWEST = torch.finfo(torch.float32).min


def soft_q_target(r_t: Tensor, discount_t: Tensor, q_t: Tensor, logp_t: Tensor, temperature: Tensor) -> Tensor:
    """One-step or n-step targets, [N], for a sampled next action (Haarnoja et al., 2018, equations 3 and 5).

    Args:
        r_t: rewards, or discounted sums of them over n steps, [N].
        discount_t: what the soft value of the next observation is multiplied by, [N]; 0 after termination.
        q_t: each target critic's value of the next action, [K, N]; the least of them counts.
        logp_t: log-probability of the next action under the policy, [N].
        temperature: worth of a nat of entropy in units of reward, a scalar.
    """
    return (r_t + discount_t * (q_t.amin(0) - temperature * logp_t)).detach()


def soft_policy_loss(q_tm1: Tensor, logp_tm1: Tensor, temperature: Tensor) -> Tensor:
    """What the policy descends in each row, [N] (Haarnoja et al., 2018, equation 9).

    Args:
        q_tm1: each critic's value of the action sampled now, [K, N], differentiable by that action.
        logp_tm1: log-probability of that action, [N], differentiable by the policy.
        temperature: worth of a nat of entropy in units of reward, a scalar; no gradient flows there.
    """
    return temperature.detach() * logp_tm1 - q_tm1.amin(0)


def temperature_loss(log_temperature: Tensor, logp_tm1: Tensor, target_entropy: Tensor | float) -> Tensor:
    """What the logarithm of the temperature descends in each row, [N]: it rises while the entropy is below its target.

    Equation 18 of Haarnoja et al., 2018, with the logarithm in place of the temperature, as in the authors' code.

    Args:
        log_temperature: a scalar; gradients flow here alone.
        logp_tm1: log-probability of a sampled action, or minus the entropy, [N].
        target_entropy: in nats, a number or [N].
    """
    return -log_temperature * (logp_tm1 + target_entropy).detach()


def legal_probabilities(logits: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities and their logarithms, [N, A] each, of a softmax over the legal actions; both 0 for illegal ones.

    So an illegal action has no share in any expectation, nor in the entropy. A row without a legal action is all 0.

    Args:
        logits: of the policy, [N, A].
        mask: legal actions, bool [N, A], or None if all are.
    """
    if mask is None:
        logp = torch.log_softmax(logits, -1)
        return logp.exp(), logp
    logp = torch.log_softmax(logits.masked_fill(~mask, _LOWEST), -1)
    return logp.exp().masked_fill(~mask, 0.0), logp.masked_fill(~mask, 0.0)


def expected_soft_q_target(
    r_t: Tensor, discount_t: Tensor, q_t: Tensor, p_t: Tensor, logp_t: Tensor, temperature: Tensor
) -> Tensor:
    """One-step or n-step targets, [N], expected over the next actions (Christodoulou, 2019, equation 10).

    Args:
        r_t: rewards, or discounted sums of them over n steps, [N].
        discount_t: what the soft value of the next observation is multiplied by, [N]; 0 after termination.
        q_t: each target critic's values of the next observation, [K, N, A]; the least of them counts.
        p_t: probability of each next action under the policy, [N, A]; 0 for illegal ones.
        logp_t: its logarithm, [N, A]; any finite number for illegal ones.
        temperature: worth of a nat of entropy in units of reward, a scalar.
    """
    soft_value = (p_t * (q_t.amin(0) - temperature * logp_t)).sum(-1)
    return (r_t + discount_t * soft_value).detach()


def expected_soft_policy_loss(q_tm1: Tensor, p_tm1: Tensor, logp_tm1: Tensor, temperature: Tensor) -> Tensor:
    """What the policy descends in each row, [N], expected over its actions (Christodoulou, 2019, equation 12).

    Args:
        q_tm1: each critic's values, [K, N, A]; no gradient flows there.
        p_tm1: probability of each action, [N, A], differentiable by the policy; 0 for illegal ones.
        logp_tm1: its logarithm, [N, A], differentiable by the policy; any finite number for illegal ones.
        temperature: worth of a nat of entropy in units of reward, a scalar; no gradient flows there.
    """
    return (p_tm1 * (temperature.detach() * logp_tm1 - q_tm1.amin(0).detach())).sum(-1)
