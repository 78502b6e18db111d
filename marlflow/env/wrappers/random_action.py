"""Random legal actions, for random play in wrappers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from marlflow.base.spaces import choices_of, components


def random_legal_action(space: spaces.Space[Any], mask: ArrayLike, random: np.random.Generator) -> Any:
    """Return an action drawn uniformly among those that `mask` allows, each component independently.

    `mask` has a place for each value, those of all components side by side. Raises TypeError for a Box.
    """
    parts = components(np.asarray(mask)[None], choices_of(space))
    chosen = np.array([random.choice(np.flatnonzero(part[0])) for part in parts])
    if isinstance(space, spaces.Discrete):
        return int(chosen[0] + space.start)
    start = space.start.ravel() if isinstance(space, spaces.MultiDiscrete) else 0
    return (chosen + start).reshape(space.shape or ()).astype(space.dtype)
