"""Losses of teams: each agent's greedy value, Peng's lambda returns, how far agents' rewards differ, means over agents.

Sunehag et al., "Value-Decomposition Networks For Cooperative Multi-Agent Learning", 2017,
https://arxiv.org/abs/1706.05296; Rashid et al., "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent
Reinforcement Learning", 2018, https://arxiv.org/abs/1803.11485.
"""

from __future__ import annotations

import torch
from torch import Tensor

from marlflow.losses.q_learning import greedy_action, taken_value


def mean_over_present(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean over joint rows, a scalar, of the mean over the present agents of each row (0 if none is).

    Rows weigh equally, so the mean over shares of a minibatch is the mean over the whole minibatch. Values of absent
    agents get no gradient, and may be anything.

    Args:
        values: one for each agent, [B, K], with gradient.
        present: which agents count, bool [B, K].
    """
    return row_means(values, present).mean()


def row_means(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean over the present agents of each row, [B]; 0 if none is.

    Args:
        values: one for each agent, [B, K], with gradient.
        present: which agents count, bool [B, K].
    """
    return values.masked_fill(~present, 0.0).sum(1) / present.sum(1).clamp(min=1)


def greedy_value(q_t_selector: Tensor, q_t_value: Tensor, mask_t: Tensor | None) -> Tensor:
    """Compute the value of each agent's greedy action, [..., K].

    A team whose mixer is monotonic maximizes its joint value by each agent's own greedy action (Rashid et al., 2018,
    equation 4), so no search over joint actions is needed.

    Args:
        q_t_selector: values by which actions are chosen, [..., K, A]; the trained network's for double Q-learning.
        q_t_value: values of the chosen actions, [..., K, A].
        mask_t: legal actions, bool [..., K, A]; None: all. Agents without any get an arbitrary action's value.
    """
    return taken_value(q_t_value, greedy_action(q_t_selector, mask_t))


def team_target(r_t: Tensor, discount_t: Tensor, q_tot_t: Tensor) -> Tensor:
    """Compute one-step or n-step targets of the team's value, [N].

    Args:
        r_t: the team's rewards or n-step sums, [N].
        discount_t: the next value's discount, [N]; 0 if the team terminated.
        q_tot_t: mixed values of the agents' next greedy actions, [N].
    """
    return (r_t + discount_t * q_tot_t).detach()


def peng_lambda_return(r_t: Tensor, discount_t: Tensor, q_tot_t: Tensor, is_last: Tensor, lambda_: float) -> Tensor:
    """Compute Peng's lambda returns, [S, T]: G_t = r_t + discount_t ((1 - lambda) q_tot_t + lambda G_{t+1}).

    At the last step of a sequence G = r + discount * q_tot. Off-policy actions are not corrected for.

    Peng and Williams, "Incremental multi-step Q-learning", 1996, https://doi.org/10.1007/BF00114731

    Args:
        r_t: the team's reward of each step, [S, T].
        discount_t: the next value's discount, [S, T]; 0 if the team terminated.
        q_tot_t: mixed values of the agents' next greedy actions, [S, T].
        is_last: whether the sequence ends with this step, bool [S, T]; what follows, which is finite, does not count.
        lambda_: 0 is one-step, 1 the whole sequence's return, bootstrapped at its end.
    """
    # Bootstraps alone where a sequence ends, so that lambda is 0 there.
    mixing = torch.where(is_last, 0.0, lambda_)
    following = torch.zeros_like(r_t[:, 0])
    returns = []
    for t in range(r_t.shape[1] - 1, -1, -1):
        share = mixing[:, t]
        following = r_t[:, t] + discount_t[:, t] * ((1.0 - share) * q_tot_t[:, t] + share * following)
        returns.append(following)
    return torch.stack(returns[::-1], 1).detach()


def reward_spread(reward: Tensor, present: Tensor) -> Tensor:
    """Compute the mean distance of the agents' own rewards from their mean, [N]; 0 if all are equal.

    A team learns from one reward. Where rewards differ, it cannot tell who earned which.

    Args:
        reward: each agent's own reward, [N, K].
        present: which agents decided, float [N, K].
    """
    agents = present.sum(1).clamp(min=1.0)
    mean = (reward * present).sum(1) / agents
    return ((reward - mean.unsqueeze(1)).abs() * present).sum(1) / agents
