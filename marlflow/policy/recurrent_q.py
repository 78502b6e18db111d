"""Recurrent Q-network (R2D2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from marlflow.base.spaces import Spaces
from marlflow.policy.dense import linear
from marlflow.policy.q import DuelingHead, QActor
from marlflow.policy.recurrent import build_recurrent_torso
from marlflow.policy.recurrent_actors import RecurrentNetworkActor
from marlflow.policy.torso import TorsoConfig


class RecurrentQNetwork(nn.Module):
    """The network of R2D2, a recurrent Q-learner; publishes the epsilon-greedy `actor`."""

    def __init__(self, spaces: Spaces, model: TorsoConfig, dueling: bool, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        torso, features = build_recurrent_torso(spaces, model, generator)
        actions = spaces.num_actions
        head = DuelingHead(features, actions, generator) if dueling else linear(features, actions, 1.0, generator)
        self.actor = RecurrentNetworkActor(torso, QActor(nn.Identity(), head))

    def forward(self, obs: Tensor, memory: Tensor, valid: Tensor, burn_in: int) -> Tensor:
        """Return action values [S, T - burn_in, A] of `obs` [S, T, ...], given memory [S, ...] and bool `valid` [S, T].

        The first `burn_in` steps only refresh the memory (Kapturowski et al., 2019,
        https://openreview.net/forum?id=r1lyTjAqYX, section 3).
        """
        if burn_in:
            with torch.no_grad():
                _, memory = self.actor.torso.unroll(obs[:, :burn_in], memory, valid[:, :burn_in])
        q, _, _ = self.actor.unroll(obs[:, burn_in:], memory, valid[:, burn_in:])
        return q
