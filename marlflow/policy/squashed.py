"""Tanh-squashed Gaussian policy over a bounded Box (Haarnoja et al., 2018, arXiv:1812.05805).

The log-density is exact even where the tanh saturates (appendix C).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from marlflow.base.batch import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Mode
from marlflow.policy.box import BoxCoordinates, normals
from marlflow.policy.dense import linear, through
from marlflow.policy.tensors import as_array, as_tensor, read_flat, write_flat

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)
_LOWEST_LOG_STD, _HIGHEST_LOG_STD = -20.0, 2.0


class SquashedGaussianActor(nn.Module):
    """A torso with a linear head for means and log standard deviations, [N, D] each, before the tanh."""

    def __init__(self, torso: nn.Module, features: int, box: spaces.Box, generator: torch.Generator) -> None:
        super().__init__()
        self.box = BoxCoordinates(box)
        self.torso = torso
        self.head = linear(features, 2 * self.box.size, 0.01, generator)
        self.device: str | None = None

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations of `obs` [N, ...], [N, D] each."""
        mean, log_std = through(self.torso, self.head, obs).float().chunk(2, -1)
        return mean, log_std.clamp(_LOWEST_LOG_STD, _HIGHEST_LOG_STD)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return differentiable actions [N, D] in [-1, 1] and their log-densities there, [N] in nats.

        `noise` is standard normal, [N, D].
        """
        mean, log_std = self(obs)
        return squashed_sample(mean, log_std, noise)

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        with torch.inference_mode():
            mean, log_std = self(as_tensor(obs, self.device))
            sampled = mode != "greedy"
            noise = normals(generator, self.box.size, self.device) if sampled else torch.zeros_like(mean)
            squashed, logp = squashed_sample(mean, log_std, noise)
        likelihood = as_array(logp - self.box.log_volume)
        if not math.isfinite(likelihood.sum()):
            raise MarlflowError("cannot choose an action: the network's output is not finite")
        return Acted(self.box.in_box(as_array(squashed)), likelihood, memory)

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


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tanh of a Gaussian sample, [N, D], and its log-density, [N] in nats (equation 26)."""
    raw = mean + log_std.exp() * noise
    # log(1 - tanh(x)**2), written without the square, which rounds to 1 for large x.
    log_slope = 2.0 * (_LOG_TWO - raw - functional.softplus(-2.0 * raw))
    logp = (-0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI - log_slope).sum(-1)
    return torch.tanh(raw), logp
