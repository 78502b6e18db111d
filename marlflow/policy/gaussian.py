"""Gaussian policy over a Box, with samples clipped to the box.

The clipped action's likelihood is exact: a density inside the box, and at a bound the whole mass beyond it (Fujita and
Maeda, 2018, arXiv:1802.07564).
"""

from __future__ import annotations

import math
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
from marlflow.policy.dense import linear, through
from marlflow.policy.tensors import as_array, as_tensor, read_flat, write_flat

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class GaussianActor(nn.Module):
    """A torso with a linear head for the means, and one free log standard deviation per action component."""

    center: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, torso: nn.Module, features: int, box: spaces.Box, generator: torch.Generator) -> None:
        super().__init__()
        self._shape = box.shape
        self.device: str | None = None
        low, high = box.low.astype(np.float32).ravel(), box.high.astype(np.float32).ravel()
        bounded = np.isfinite(low) & np.isfinite(high)
        # Halve before adding: the sum of two large bounds could overflow float32.
        center = np.where(bounded, 0.5 * np.where(bounded, low, 0.0) + 0.5 * np.where(bounded, high, 0.0), 0.0)
        scale = np.where(bounded, np.where(bounded, high, 0.0) - center, 1.0)
        for name, value in {"low": low, "high": high, "center": center, "scale": scale}.items():
            self.register_buffer(name, torch.from_numpy(value.astype(np.float32)), persistent=False)
        self.torso = torso
        self.head = linear(features, len(low), 0.01, generator)
        self.log_std = nn.Parameter(torch.zeros(len(low)))

    def forward(self, obs: Tensor) -> Tensor:
        """Return rescaled means [N, D] of `obs` [N, ...]."""
        return through(self.torso, self.head, obs)

    def log_prob_and_entropy(self, mean: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the clipped `action` [N, *shape] and Gaussian entropies, [N] each, in nats."""
        flat = action.flatten(1) if action.dim() > 1 else action.unsqueeze(1)
        noise = ((flat - self.center) / self.scale - mean) * torch.exp(-self.log_std)
        inside = -0.5 * noise.square() - self.log_std - _HALF_LOG_TWO_PI
        # log_ndtr(noise) is the mass below, log_ndtr(-noise) the mass above, so one evaluation covers both bounds.
        at_low, at_high = flat <= self.low, flat >= self.high
        beyond = torch.special.log_ndtr(torch.where(at_low, noise, -noise))
        logp = torch.where(at_low | at_high, beyond, inside).sum(-1)
        entropy = (self.log_std + 0.5 + _HALF_LOG_TWO_PI).sum().expand(len(flat))
        return logp, entropy

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        with torch.inference_mode():
            mean = self(as_tensor(obs, self.device))
            sampled = mean
            if mode != "greedy":
                noise = np.stack([generator.normal() for _ in range(mean.shape[1])], axis=-1).astype(np.float32)
                sampled = mean + as_tensor(noise, self.device) * torch.exp(self.log_std)
            action = torch.clamp(self.center + self.scale * sampled, self.low, self.high)
            logp, _ = self.log_prob_and_entropy(mean, action, None)
        likelihood = as_array(logp)
        if not np.isfinite(likelihood.sum()):
            raise MarlflowError("cannot choose an action: the network's output is not finite")
        return Acted(as_array(action).reshape(len(obs), *self._shape), likelihood, memory)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # No setting of this actor is scheduled.
        pass

    def move_to(self, device: str) -> None:
        self.to(device)
        self.device = None if device == "cpu" else device

    def flat(self) -> Array:
        return read_flat(self)

    def load_flat(self, flat: Array) -> None:
        write_flat(self, flat)
