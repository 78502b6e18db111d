"""Networks over observations of several parts: what reads the parts out of a row, and what computes with them.

Only here do pixels stop being bytes; see `base.observations` for how rows are laid out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.observations import Layout, Leaf
from marlflow.policy.dense import as_rows

BRIGHTEST = 255.0


class Reader:
    """Reads one leaf out of rows, as float32: pixels as 0 to 1, everything else as the number that it is."""

    def __init__(self, layout: Layout, leaf: Leaf) -> None:
        self.leaf_shape = leaf.shape
        self._where = slice(leaf.start, leaf.stop)
        self._dtype = torch.from_numpy(np.zeros(1, leaf.dtype)).dtype if layout.form == "packed" else None
        self._scale = 1.0 / BRIGHTEST if leaf.pixels else None

    def __call__(self, obs: Tensor) -> Tensor:
        """The leaf's numbers, float32 [N, *leaf_shape], of rows [N, D]."""
        part = obs[:, self._where]
        if self._dtype is not None and self._dtype != torch.uint8:
            # A copy of its own is aligned as numbers of more than a byte must be.
            part = part.clone(memory_format=torch.contiguous_format).view(self._dtype)
        numbers = part.float()
        if self._scale is not None:
            numbers = numbers * self._scale
        return numbers.reshape(len(obs), *self.leaf_shape)


class Flattened(nn.Module):
    """A torso over the numbers of all leaves side by side, float32 [N, D], in the order of `layout`."""

    def __init__(self, layout: Layout, torso: nn.Module) -> None:
        super().__init__()
        self._readers = [Reader(layout, leaf) for leaf in layout.leaves]
        self.torso = torso

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, F] of rows [N, D]."""
        features: Tensor = self.torso(torch.cat([as_rows(read(obs)) for read in self._readers], 1))
        return features


class Part(NamedTuple):
    """What sees one leaf."""

    leaf: Leaf
    network: nn.Module


class Joined(nn.Module):
    """A network of its own for each of some leaves, whose features stand before the other leaves' numbers."""

    def __init__(self, layout: Layout, parts: Sequence[Part], torso: nn.Module) -> None:
        super().__init__()
        seen = {part.leaf.path for part in parts}
        self._seen = [Reader(layout, part.leaf) for part in parts]
        self._others = [Reader(layout, leaf) for leaf in layout.leaves if leaf.path not in seen]
        self.parts = nn.ModuleList(part.network for part in parts)
        self.torso = torso

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, F] of rows [N, D]."""
        found = [network(read(obs)).flatten(1) for read, network in zip(self._seen, self.parts, strict=True)]
        found += [as_rows(read(obs)) for read in self._others]
        features: Tensor = self.torso(torch.cat(found, 1))
        return features
