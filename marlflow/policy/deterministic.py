"""Deterministic policy over a bounded Box, with Gaussian exploration noise (DDPG, TD3; arXiv:1509.02971)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from marlflow.base.batch import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Mode
from marlflow.policy.box import BoxCoordinates, normals
from marlflow.policy.dense import linear, through
from marlflow.policy.tensors import as_array, as_tensor, read_flat, write_flat


class DeterministicActor(nn.Module):
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
        self.exploration_noise = exploration_noise
        self.device: str | None = None

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions [N, D] in [-1, 1] for `obs` [N, ...]."""
        return torch.tanh(through(self.torso, self.head, obs).float())

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        with torch.inference_mode():
            action = self(as_tensor(obs, self.device))
            if mode == "explore" and self.exploration_noise > 0.0:
                action = action + self.exploration_noise * normals(generator, self.box.size, self.device)
        chosen = as_array(action)
        # The sum is NaN or infinite if any entry is: cheaper than testing each.
        if not np.isfinite(chosen.sum()):
            raise MarlflowError("cannot choose an action: the network's output is not finite")
        return Acted(self.box.in_box(chosen), np.full(len(obs), np.nan, np.float32), memory)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.exploration_noise = float(values.get("exploration_noise", self.exploration_noise))

    def move_to(self, device: str) -> None:
        self.to(device)
        self.device = None if device == "cpu" else device

    def flat(self) -> Array:
        return read_flat(self)

    def load_flat(self, flat: Array) -> None:
        write_flat(self, flat)
