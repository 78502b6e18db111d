"""Actors of a Box: deterministic, Gaussian and tanh-squashed Gaussian; rescaling to [-1, 1], the range of a tanh."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Mode, NetworkActor, Scheduled, as_scheduled
from marlflow.policy.dense import linear, through
from marlflow.policy.tensors import as_array, as_float32, as_tensor


class BoxCoordinates(nn.Module):
    """Converts actions between [-1, 1], [N, D], and a Box, [N, *shape]; raises ConfigInvalid (see `box_problem`).

    Subtract `log_volume`, in nats, from log-densities in [-1, 1].
    """

    center: Tensor
    scale: Tensor

    def __init__(self, box: spaces.Box) -> None:
        super().__init__()
        if problem := box_problem(box):
            raise ConfigInvalid([f"a policy with bounded actions cannot act here: {problem}"])
        self._shape, self.size = box.shape, int(np.prod(box.shape))
        self._low, self._high = box.low.astype(np.float32).ravel(), box.high.astype(np.float32).ravel()
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        self._center, self._scale = (0.5 * (low + high)).astype(np.float32), (0.5 * (high - low)).astype(np.float32)
        self.log_volume = float(np.log(self._scale, dtype=np.float64).sum())
        self.register_buffer("center", torch.from_numpy(self._center), persistent=False)
        self.register_buffer("scale", torch.from_numpy(self._scale), persistent=False)

    def within(self, action: Tensor) -> Tensor:
        """Rescale actions [N, *shape] of the Box to [N, D] in [-1, 1]."""
        flat = action.flatten(1) if action.dim() > 1 else action.unsqueeze(1)
        return (flat - self.center) / self.scale

    def in_box(self, action: Array) -> Array:
        """Rescale actions [N, D] in [-1, 1] to the Box, float32 [N, *shape], clipped to its bounds."""
        # Rounding may leave the bounds by one unit in the last place, hence the clipping.
        rounded: Array = np.minimum(np.maximum(self._center + self._scale * action, self._low), self._high)
        return rounded.reshape(len(action), *self._shape)


def box_problem(space: spaces.Space[object]) -> str | None:
    """Return why `space` cannot be rescaled to [-1, 1], or None."""
    if not isinstance(space, spaces.Box):
        return f"it needs a Box of actions, not {space}"
    if not space.is_bounded():
        return f"it needs actions with finite bounds, not {space}: bound them, as by a wrapper that rescales or clips"
    if not (space.low < space.high).all() or space.low.size == 0:
        return fixed_components(space)
    return None


def fixed_components(space: spaces.Box) -> str:
    """Return why a Box in which components have one value only cannot be acted in."""
    return f"it needs actions whose every component can vary, not {space}: drop the fixed ones, by a wrapper"


def normals(generator: RowRandom, size: int, device: str | None) -> Tensor:
    """Draw standard normal numbers from each row's stream, float32 [N, size]."""
    return as_tensor(np.stack([generator.normal() for _ in range(size)], axis=-1).astype(np.float32), device)


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


_TAIL = -20.0
_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def log_mass_below(noise: Tensor) -> Tensor:
    """Return the logarithm of the standard normal distribution's mass below `noise`, of the same shape.

    As `torch.special.log_ndtr`, whose gradient in float32 is wrong far below 0, where it cancels two large numbers.
    """
    near, far = noise.clamp(min=_TAIL), noise.clamp(max=_TAIL)
    inverse = far.square().reciprocal()
    # The asymptotic series; its next term is 15 / _TAIL**6.
    tail = -0.5 * far.square() - torch.log(-far) - _HALF_LOG_TWO_PI + torch.log1p(3.0 * inverse.square() - inverse)
    return torch.where(noise < _TAIL, tail, torch.special.log_ndtr(near))


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
        return self._log_prob(as_float32(mean), self.log_std, flat), entropy

    # [N] of clipped actions [N, D]; `log_std` is [D] or [N, D].
    def _log_prob(self, mean: Tensor, log_std: Tensor, flat: Tensor) -> Tensor:
        noise = ((flat - self.center) / self.scale - mean) * torch.exp(-log_std)
        inside = -0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI
        # The mass above `noise` is the mass below -noise, so one evaluation covers both bounds.
        at_low, at_high = flat <= self.low, flat >= self.high
        beyond = log_mass_below(torch.where(at_low, noise, -noise))
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
        return torch.cat(self(obs), -1), None

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
