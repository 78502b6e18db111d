"""The part of a network that turns observations into features: configs that build it.

Weights start orthogonal and biases at zero (Saxe et al., 2014, arXiv:1312.6120), from a generator of the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from marlflow.base.errors import ConfigInvalid
from marlflow.policy.dense import Activation, Dense

# In place: the result is all that the backward pass of either needs.
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh_, "relu": torch.relu_}


class TorsoConfig(Protocol):
    """How to build a torso."""

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        """A module from `obs` [N, *obs_shape] to features [N, F], and F."""
        ...


@dataclass(frozen=True, slots=True)
class MLP:
    """Fully connected layers over the flattened observation."""

    hidden_sizes: Sequence[int] = (64, 64)
    activation: Activation = "tanh"

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        """A module from `obs` [N, *obs_shape] to features [N, F], and F."""
        sizes = [math.prod(obs_shape), *self.hidden_sizes]
        return Dense(sizes, self.activation, generator), sizes[-1]


@dataclass(frozen=True, slots=True)
class CNN:
    """Convolutions over an image [height, width, channels], then fully connected layers.

    The defaults are those of Mnih et al. (2015, doi:10.1038/nature14236) for 84 x 84 pixels; uint8 becomes 0 to 1.
    """

    channels: Sequence[int] = (32, 64, 64)
    kernel_sizes: Sequence[int] = (8, 4, 3)
    strides: Sequence[int] = (4, 2, 1)
    hidden_sizes: Sequence[int] = (512,)
    activation: Activation = "relu"

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        """A module from `obs` [N, *obs_shape] to features [N, F], and F; raises ConfigInvalid if it does not fit."""
        height, width, planes = self._image(obs_shape)
        convolutions = nn.ModuleList()
        for channels, kernel, stride in zip(self.channels, self.kernel_sizes, self.strides, strict=True):
            convolution = nn.Conv2d(planes, channels, kernel, stride)
            nn.init.zeros_(cast(Tensor, convolution.bias))
            nn.init.orthogonal_(convolution.weight, math.sqrt(2.0), generator)
            convolutions.append(convolution)
            height, width, planes = (height - kernel) // stride + 1, (width - kernel) // stride + 1, channels
            if min(height, width) < 1:
                raise ConfigInvalid(
                    [f"a kernel of {kernel} does not fit: observations of shape {obs_shape} are smaller"]
                )
        sizes = [height * width * planes, *self.hidden_sizes]
        return Convolutional(convolutions, Dense(sizes, self.activation, generator), self.activation), sizes[-1]

    def _image(self, obs_shape: tuple[int, ...]) -> tuple[int, int, int]:
        if len(obs_shape) != 3:
            raise ConfigInvalid(
                [f"a CNN sees [height, width, channels], not observations of shape {obs_shape}; use MLP"]
            )
        if not len(self.channels) == len(self.kernel_sizes) == len(self.strides):
            raise ConfigInvalid(["a CNN needs as many channels as kernel_sizes and strides"])
        return obs_shape


class Convolutional(nn.Module):
    """Convolutions over [N, height, width, channels], then fully connected layers."""

    def __init__(self, convolutions: nn.ModuleList, dense: Dense, activation: Activation) -> None:
        super().__init__()
        self.convolutions, self.dense = convolutions, dense
        self._activate = _ACTIVATIONS[activation]

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, F] of `obs` [N, height, width, channels]."""
        x = obs.float() * (1.0 / 255.0) if obs.dtype == torch.uint8 else obs.float()
        x = x.permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            x = self._activate(convolution(x))
        features: Tensor = self.dense(x.flatten(1))
        return features
