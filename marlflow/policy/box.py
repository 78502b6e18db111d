"""Rescaling between a bounded Box and [-1, 1], the range of a tanh policy."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.random import RowRandom
from marlflow.policy.tensors import as_tensor


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
        return f"it needs actions whose every component can vary, not {space}: drop the fixed ones, by a wrapper"
    return None


def normals(generator: RowRandom, size: int, device: str | None) -> Tensor:
    """Draw standard normal numbers from each row's stream, float32 [N, size]."""
    return as_tensor(np.stack([generator.normal() for _ in range(size)], axis=-1).astype(np.float32), device)
