"""Tanh-squashed Gaussian policy over a bounded Box (Haarnoja et al., 2018, arXiv:1812.05805).

The log-density is exact even where the tanh saturates (appendix C).
"""

from __future__ import annotations

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Mode
from marlflow.policy.box import BoxCoordinates, normals
from marlflow.policy.dense import linear, through
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.tensors import as_array

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO = math.log(2.0)
_LOWEST_LOG_STD, _HIGHEST_LOG_STD = -20.0, 2.0


class SquashedGaussianActor(NetworkActor):
    """A torso with a linear head for means and log standard deviations, [N, D] each, before the tanh."""

    def __init__(self, torso: nn.Module, features: int, box: spaces.Box, generator: torch.Generator) -> None:
        super().__init__()
        self.box = BoxCoordinates(box)
        self.torso = torso
        self.head = linear(features, 2 * self.box.size, 0.01, generator)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log standard deviations of `obs` [N, ...], [N, D] each."""
        return mean_and_log_std(through(self.torso, self.head, obs))

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return differentiable actions [N, D] in [-1, 1] and their log-densities there, [N] in nats.

        `noise` is standard normal, [N, D].
        """
        mean, log_std = self(obs)
        return squashed_sample(mean, log_std, noise)

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return through(self.torso, self.head, obs), None

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        mean, log_std = mean_and_log_std(outputs)
        sampled = mode != "greedy"
        noise = normals(generator, self.box.size, self.device) if sampled else torch.zeros_like(mean)
        squashed, logp = squashed_sample(mean, log_std, noise)
        likelihood = as_array(logp - self.box.log_volume)
        if not math.isfinite(likelihood.sum()):
            raise MarlflowError("cannot choose an action: the network's output is not finite")
        return self.box.in_box(as_array(squashed)), likelihood


def mean_and_log_std(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two halves of an actor's outputs [N, 2 D], the log standard deviations limited, [N, D] each."""
    mean, log_std = outputs.float().chunk(2, -1)
    return mean, log_std.clamp(_LOWEST_LOG_STD, _HIGHEST_LOG_STD)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tanh of a Gaussian sample, [N, D], and its log-density, [N] in nats (equation 26)."""
    raw = mean + log_std.exp() * noise
    # log(1 - tanh(x)**2), written without the square, which rounds to 1 for large x.
    log_slope = 2.0 * (_LOG_TWO - raw - functional.softplus(-2.0 * raw))
    logp = (-0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI - log_slope).sum(-1)
    return torch.tanh(raw), logp
