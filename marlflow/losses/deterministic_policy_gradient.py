"""Deterministic policy gradient (DDPG, TD3).

Lillicrap et al., "Continuous control with deep reinforcement learning", 2016, https://arxiv.org/abs/1509.02971;
Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018,
https://arxiv.org/abs/1802.09477. Action components are in [-1, 1].
"""

from __future__ import annotations

from torch import Tensor


def smoothed_action(a_t: Tensor, noise_t: Tensor, scale: float, clip: float) -> Tensor:
    """Add clipped noise to `a_t` for target policy smoothing, [N, D] (Fujimoto et al., section 5.3).

    Args:
        a_t: the target policy's next actions, [N, D].
        noise_t: standard normal samples, [N, D].
        scale: standard deviation of the noise.
        clip: largest change of a component.
    """
    return (a_t + (scale * noise_t).clamp(-clip, clip)).clamp(-1.0, 1.0)


def deterministic_policy_loss(q_tm1: Tensor) -> Tensor:
    """Compute the policy's loss per row, [N] (Lillicrap et al., equation 6).

    Args:
        q_tm1: the critic's value of the policy's action, [N], with gradient to it.
    """
    return -q_tm1
