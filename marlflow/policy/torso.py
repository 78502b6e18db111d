"""Torsos, which turn observations into features, and the configs that build them.

Weights start orthogonal and biases at zero (Saxe et al., 2014, arXiv:1312.6120).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.errors import ConfigInvalid
from marlflow.base.observations import BRIGHTEST, Leaf, ObservationLayout, named
from marlflow.base.ranges import Pixels, Width
from marlflow.base.spaces import Spaces
from marlflow.policy.dense import ACTIVATIONS, Activation, Dense, as_rows
from marlflow.policy.normalized import NormalizedTorso

Padding = Literal["valid", "same"]


class LeafReader:
    """Reads one `leaf` of a nested observation out of rows of `layout`, as float32 with pixels scaled to [0, 1].

    Rows of observations with leaves of several dtypes are bytes.
    """

    def __init__(self, layout: ObservationLayout, leaf: Leaf) -> None:
        self.leaf_shape = leaf.shape
        self._columns = slice(leaf.start, leaf.stop)
        self._dtype = torch.from_numpy(np.zeros(1, leaf.dtype)).dtype if layout.form == "packed" else None
        self._scale = 1.0 / BRIGHTEST if leaf.pixels else None

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the leaf's numbers, float32 [N, *leaf_shape], from rows [N, D]."""
        part = obs[:, self._columns]
        if self._dtype is not None and part.dtype != self._dtype:
            # A view of several bytes per number needs aligned memory, which a slice of bytes may not have; a copy does.
            part = part.clone(memory_format=torch.contiguous_format).view(self._dtype)
        numbers = part.float()
        if self._scale is not None:
            numbers = numbers * self._scale
        return numbers.reshape(obs.shape[0], *self.leaf_shape)


class Flattened(nn.Module):
    """A torso over the concatenated numbers of all leaves, float32 [N, D]."""

    def __init__(self, layout: ObservationLayout, torso: nn.Module) -> None:
        super().__init__()
        self._readers = [LeafReader(layout, leaf) for leaf in layout.leaves]
        self.torso = torso

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.torso(torch.cat([as_rows(read(obs)) for read in self._readers], 1))
        return features


class ObservationLeaf(NamedTuple):
    """One leaf and the network that reads it."""

    leaf: Leaf
    network: nn.Module


class Joined(nn.Module):
    """Separate networks for some leaves, and a torso over their features and the other leaves' numbers."""

    def __init__(self, layout: ObservationLayout, parts: Sequence[ObservationLeaf], torso: nn.Module) -> None:
        super().__init__()
        separate_paths = {part.leaf.path for part in parts}
        self._separate = [LeafReader(layout, part.leaf) for part in parts]
        self._others = [LeafReader(layout, leaf) for leaf in layout.leaves if leaf.path not in separate_paths]
        self.parts = nn.ModuleList(part.network for part in parts)
        self.torso = torso

    def forward(self, obs: Tensor) -> Tensor:
        parts = [network(read(obs)).flatten(1) for read, network in zip(self._separate, self.parts, strict=True)]
        parts += [as_rows(read(obs)) for read in self._others]
        features: Tensor = self.torso(torch.cat(parts, 1))
        return features


class TorsoConfig(Protocol):
    """Builds a torso.

    Nested observations arrive as concatenated float32 numbers [N, D], pixels in [0, 1], Discrete values one-hot.
    """

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        """Build a module from `obs` [N, *obs_shape] to features [N, F]; return it and F."""
        ...


@runtime_checkable
class NestedTorsoConfig(TorsoConfig, Protocol):
    """Builds a torso that sees the leaves of a nested observation (see `policy.torso`)."""

    def build_nested(self, layout: ObservationLayout, generator: torch.Generator) -> tuple[nn.Module, int]:
        """Build a module from rows of `layout`, [N, D], to features [N, F]; return it and F."""
        ...


def build_torso(spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> tuple[nn.Module, int]:
    """Build a module from the `obs` column to features [N, F]; return it and F.

    Raises ConfigInvalid for unsupported observations.
    """
    return build_for(spaces.layout(), model, generator)


def build_for(layout: ObservationLayout, model: TorsoConfig, generator: torch.Generator) -> tuple[nn.Module, int]:
    """Build a module from rows of `layout` to features [N, F]; return it and F.

    Raises ConfigInvalid for a layout that `model` does not support.
    """
    if layout.form == "plain":
        return _built(model, layout.shape, generator)
    if isinstance(model, NestedTorsoConfig):
        return model.build_nested(layout, generator)
    if layout.form != "flat" and normalizes(model):
        raise ConfigInvalid(
            ["normalize_observations is for observations of plain numbers, not with pixels or categories among them"]
        )
    torso, features = _built(model, (sum(leaf.size for leaf in layout.leaves),), generator)
    return (torso if layout.form == "flat" else Flattened(layout, torso)), features


def _built(model: TorsoConfig, shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
    built: Any = model.build(shape, generator)
    match built:
        case (nn.Module() as torso, features):
            return torso, features
    returned = f"{type(model).__name__}.build() returned a {type(built).__name__}"
    raise ConfigInvalid([f"{returned}; it returns a network and the number of its features, (network, F)"])


@dataclass(frozen=True, slots=True)
class MLP:
    """Fully connected layers over the flattened observation."""

    hidden_sizes: Sequence[Width] = (64, 64)  #: units of each layer
    activation: Activation = "tanh"  #: tanh or relu
    #: whether observations are normalized by their running mean and variance
    normalize_observations: bool = False

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        sizes = [math.prod(obs_shape), *self.hidden_sizes]
        dense = Dense(sizes, self.activation, generator)
        return NormalizedTorso(dense, sizes[0]) if self.normalize_observations else dense, sizes[-1]


def normalizes(model: TorsoConfig) -> bool:
    """Return whether a model normalizes observations, by statistics that it updates from each training batch."""
    return isinstance(model, MLP) and model.normalize_observations


@dataclass(frozen=True, slots=True, repr=False)
class CNN:
    """Convolutional layers over an image [height, width, channels], then fully connected ones.

    The defaults are for 84 x 84 pixels (Mnih et al., 2015, doi:10.1038/nature14236); uint8 is scaled to [0, 1]. For a
    board use `padding` "same": without it, its edges are seen by few units of the first convolution, and each further
    one sees a smaller board.
    """

    channels: Sequence[Pixels] = (32, 64, 64)  #: channels of each convolution
    kernel_sizes: Sequence[Pixels] = (8, 4, 3)  #: pixels
    strides: Sequence[Pixels] = (4, 2, 1)  #: pixels
    hidden_sizes: Sequence[Width] = (512,)  #: units of each layer after the convolutions
    activation: Activation = "relu"  #: tanh or relu
    #: valid: none; same: zeros around the input of each convolution, so that a stride of 1 keeps height and width
    padding: Padding = "valid"

    def __repr__(self) -> str:
        """Return all settings but the default padding, which runs that began before there was one do not have."""
        shown = (field.name for field in fields(self) if (field.name, self.padding) != ("padding", "valid"))
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        if len(obs_shape) != 3:
            raise ConfigInvalid(
                [f"a CNN sees [height, width, channels], not observations of shape {obs_shape}; use MLP"]
            )
        convolutions, numbers = self._convolutions("observation", obs_shape, generator)
        sizes = [numbers, *self.hidden_sizes]
        return nn.Sequential(convolutions, Dense(sizes, self.activation, generator)), sizes[-1]

    def build_nested(self, layout: ObservationLayout, generator: torch.Generator) -> tuple[nn.Module, int]:
        """Build convolutions for each three-dimensional leaf, then dense layers over their features and the rest."""
        images = [leaf for leaf in layout.leaves if len(leaf.shape) == 3]
        if not images:
            shapes = ", ".join(f"{named(leaf.path)}: {leaf.shape}" for leaf in layout.leaves)
            raise ConfigInvalid(
                [f"a CNN sees [height, width, channels], and nothing of that form is among {shapes}; use MLP"]
            )
        parts, numbers = [], sum(leaf.size for leaf in layout.leaves if len(leaf.shape) != 3)
        for leaf in images:
            convolutions, size = self._convolutions(named(leaf.path), leaf.shape, generator)
            parts.append(ObservationLeaf(leaf, convolutions))
            numbers += size
        sizes = [numbers, *self.hidden_sizes]
        return Joined(layout, parts, Dense(sizes, self.activation, generator)), sizes[-1]

    def _convolutions(self, name: str, image: tuple[int, ...], generator: torch.Generator) -> tuple[Convolutional, int]:
        if not len(self.channels) == len(self.kernel_sizes) == len(self.strides):
            raise ConfigInvalid(["a CNN needs as many channels as kernel_sizes and strides"])
        if self.padding == "same" and (even := [size for size in self.kernel_sizes if size % 2 == 0]):
            raise ConfigInvalid([f"padding=same needs odd kernel_sizes, not {even[0]}"])
        height, width, planes = image
        layers = nn.ModuleList()
        for channels, kernel, stride in zip(self.channels, self.kernel_sizes, self.strides, strict=True):
            around = kernel // 2 if self.padding == "same" else 0
            height, width = height + 2 * around, width + 2 * around
            if min(height, width) < kernel:
                raise ConfigInvalid([_too_small(name, image, kernel, (height, width))])
            layer = nn.Conv2d(planes, channels, kernel, stride, around)
            nn.init.zeros_(cast(Tensor, layer.bias))
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0), generator)
            layers.append(layer)
            height, width, planes = (height - kernel) // stride + 1, (width - kernel) // stride + 1, channels
        return Convolutional(layers, self.activation), height * width * planes


def _too_small(name: str, image: tuple[int, ...], kernel: int, left: tuple[int, int]) -> str:
    height, width, _ = image
    before = "" if left == (height, width) else f", of which the layers before leave {left[0]} x {left[1]}"
    smaller = "channels=[32,64] kernel_sizes=[3,3] strides=[1,1] padding=same"
    return (
        f"a kernel of {kernel} x {kernel} does not fit {name}, {height} x {width}{before}; give the model smaller "
        f"ones, such as {smaller}, or use MLP"
    )


class Convolutional(nn.Module):
    """Convolutions over [N, height, width, channels], with flattened output."""

    def __init__(self, convolutions: nn.ModuleList, activation: Activation) -> None:
        super().__init__()
        self.convolutions = convolutions
        self._activate = ACTIVATIONS[activation]

    def forward(self, obs: Tensor) -> Tensor:
        """Return numbers [N, D] of `obs` [N, height, width, channels], of any dtype."""
        x = obs.float() * (1.0 / BRIGHTEST) if obs.dtype == torch.uint8 else obs.float()
        # torch convolves [N, channels, height, width].
        x = x.permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            x = self._activate(convolution(x))
        return x.flatten(1)
