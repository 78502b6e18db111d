"""Gaussian policy over a Box, with samples clipped to the box.

The clipped action's likelihood is exact: a density inside the box, and at a bound the whole mass beyond it (Fujita and
Maeda, 2018, arXiv:1802.07564).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Mode
from marlflow.policy.box import normals
from marlflow.policy.dense import linear, through
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.tensors import as_array

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class GaussianActor(NetworkActor):
    """A torso with a linear head for the means, and one free log standard deviation per action component."""

    center: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, torso: nn.Module, features: int, box: spaces.Box, generator: torch.Generator) -> None:
        super().__init__()
        self._shape = box.shape
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
        entropy = (self.log_std + 0.5 + _HALF_LOG_TWO_PI).sum().expand(len(flat))
        return self._log_prob(mean, self.log_std, flat), entropy

    # [N] of clipped actions [N, D]; `log_std` is [D] or [N, D].
    def _log_prob(self, mean: Tensor, log_std: Tensor, flat: Tensor) -> Tensor:
        noise = ((flat - self.center) / self.scale - mean) * torch.exp(-log_std)
        inside = -0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI
        # log_ndtr(noise) is the mass below, log_ndtr(-noise) the mass above, so one evaluation covers both bounds.
        at_low, at_high = flat <= self.low, flat >= self.high
        beyond = torch.special.log_ndtr(torch.where(at_low, noise, -noise))
        return torch.where(at_low | at_high, beyond, inside).sum(-1)

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        mean = self(obs)
        return torch.cat((mean, self.log_std.expand_as(mean)), 1), None

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        mean, log_std = outputs.chunk(2, 1)
        sampled = mean
        if mode != "greedy":
            sampled = mean + normals(generator, mean.shape[1], self.device) * torch.exp(log_std)
        action = torch.clamp(self.center + self.scale * sampled, self.low, self.high)
        likelihood = as_array(self._log_prob(mean, log_std, action))
        if not np.isfinite(likelihood.sum()):
            raise MarlflowError("cannot choose an action: the network's output is not finite")
        return as_array(action).reshape(len(mean), *self._shape), likelihood
