"""Networks over nested (Dict, Tuple) observations, whose row layout `base.observations` defines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.observations import Leaf, ObservationLayout
from marlflow.policy.dense import as_rows

BRIGHTEST = 255.0


class Reader:
    """Reads one leaf out of rows as float32, with pixels scaled to [0, 1]."""

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
        self._readers = [Reader(layout, leaf) for leaf in layout.leaves]
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
        self._separate = [Reader(layout, part.leaf) for part in parts]
        self._others = [Reader(layout, leaf) for leaf in layout.leaves if leaf.path not in separate_paths]
        self.parts = nn.ModuleList(part.network for part in parts)
        self.torso = torso

    def forward(self, obs: Tensor) -> Tensor:
        parts = [network(read(obs)).flatten(1) for read, network in zip(self._separate, self.parts, strict=True)]
        parts += [as_rows(read(obs)) for read in self._others]
        features: Tensor = self.torso(torch.cat(parts, 1))
        return features
