"""Distributional Q-network over fixed atoms (C51: Bellemare et al., 2017, arXiv:1707.06887)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from marlflow.base.spaces import Spaces
from marlflow.policy.dense import linear
from marlflow.policy.q import QActor
from marlflow.policy.torso import TorsoConfig, build_torso


class AtomsHead(nn.Module):
    """Logits of the atoms `support` [K] per action; `forward` returns expected values, as a QActor needs.

    `dueling` is as in Hessel et al., 2018, arXiv:1710.02298.
    """

    support: Tensor

    def __init__(
        self, features: int, num_actions: int, support: Tensor, dueling: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.register_buffer("support", support, persistent=False)
        atoms = len(support)
        self.state = linear(features, atoms, 1.0, generator) if dueling else None
        self.advantage = linear(features, num_actions * atoms, 1.0, generator)

    def logits(self, features: Tensor) -> Tensor:
        """Return logits [N, A, K] of `features` [N, F]."""
        advantage: Tensor = self.advantage(features).unflatten(-1, (-1, len(self.support)))
        if self.state is None:
            return advantage
        state: Tensor = self.state(features).unsqueeze(1)
        return state + (advantage - advantage.mean(1, keepdim=True))

    def expected(self, logits: Tensor) -> Tensor:
        """Return values [N, A] of `logits` [N, A, K]."""
        return logits.softmax(-1) @ self.support

    def forward(self, features: Tensor) -> Tensor:
        return self.expected(self.logits(features))


class DistributionalQNetwork(nn.Module):
    """The network of a C51 learner, with `atoms` atoms from `low` to `high`; publishes `actor`."""

    def __init__(
        self, spaces: Spaces, torso: TorsoConfig, dueling: bool, atoms: int, low: float, high: float, seed: int
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        body, features = build_torso(spaces, torso, generator)
        head = AtomsHead(features, spaces.num_actions, torch.linspace(low, high, atoms), dueling, generator)
        self.actor = QActor(body, head)

    @property
    def head(self) -> AtomsHead:
        return cast(AtomsHead, self.actor.head)

    def forward(self, obs: Tensor) -> Tensor:
        q: Tensor = self.actor(obs)
        return q

    def logits(self, obs: Tensor) -> Tensor:
        """Return logits of each action's atoms, [N, A, K], of `obs` [N, ...]."""
        return self.head.logits(self.actor.torso(obs))
