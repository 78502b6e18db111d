"""Deterministic policy over a bounded Box, with Gaussian exploration noise (DDPG, TD3; arXiv:1509.02971)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Mode
from marlflow.policy.box import BoxCoordinates, normals
from marlflow.policy.dense import linear, through
from marlflow.policy.network_actor import NetworkActor, Scheduled, as_scheduled
from marlflow.policy.tensors import as_array, as_tensor


class DeterministicActor(NetworkActor):
    """A torso with a linear head and a tanh; `behavior_logp` is NaN.

    The schedule `exploration_noise` is the noise's standard deviation, with action components rescaled to [-1, 1].
    """

    def __init__(
        self,
        torso: nn.Module,
        features: int,
        box: spaces.Box,
        generator: torch.Generator,
        exploration_noise: float = 0.1,
    ) -> None:
        super().__init__()
        self.box = BoxCoordinates(box)
        self.torso = torso
        self.head = linear(features, self.box.size, 0.01, generator)
        self.exploration_noise: Scheduled = exploration_noise

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions [N, D] in [-1, 1] for `obs` [N, ...]."""
        return torch.tanh(through(self.torso, self.head, obs).float())

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self(obs), None

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        action, noise = outputs, self.exploration_noise
        if mode == "explore" and np.any(noise > 0.0):
            scale = noise if isinstance(noise, float) else as_tensor(noise.astype(np.float32), self.device).unsqueeze(1)
            action = action + scale * normals(generator, self.box.size, self.device)
        chosen = as_array(action)
        # The sum is NaN or infinite if any entry is: cheaper than testing each.
        if not np.isfinite(chosen.sum()):
            raise MarlflowError("cannot choose an action: the network's output is not finite")
        return self.box.in_box(chosen), np.full(len(chosen), np.nan, np.float32)

    def set_schedule(self, values: Mapping[str, Scheduled]) -> None:
        self.exploration_noise = as_scheduled(values.get("exploration_noise", self.exploration_noise))
