"""An agent's action mask, in its observation or in its info: read, replaced, or drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from marlflow.base.arrays import Array
from marlflow.base.spaces import DISCRETE_KINDS, choices_of, components

OBSERVATION, MASK = "observation", "action_mask"


class MaskedView:
    """One agent's observations as its environment declares them: with the mask inside, or without one.

    `space` is the observation's space without the mask, `width` the number of the mask's elements, 0 without a mask
    (and where only observations are asked for).
    """

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any] | None = None) -> None:
        self.is_inside = isinstance(observation_space, spaces.Dict) and MASK in observation_space.spaces
        self.width = sum(choices_of(action_space)) if isinstance(action_space, DISCRETE_KINDS) else 0
        self._is_pair = False
        self.space = observation_space
        if self.is_inside:
            others = {key: inner for key, inner in observation_space.spaces.items() if key != MASK}  # type: ignore[attr-defined]
            self._is_pair = set(others) == {OBSERVATION}
            self.space = others[OBSERVATION] if self._is_pair else spaces.Dict(others)

    def bare(self, observation: Any) -> Any:
        """Return the observation without its mask."""
        if not self.is_inside:
            return observation
        return observation[OBSERVATION] if self._is_pair else {k: v for k, v in observation.items() if k != MASK}

    def legal(self, observation: Any, info: Mapping[str, Any] | None) -> Array:
        """Return the actions that the environment allows, bool [width]; all of them if there is no mask."""
        mask = observation[MASK] if self.is_inside else (info or {}).get(MASK)
        return np.ones(self.width, np.bool_) if mask is None else np.asarray(joined(mask)).astype(np.bool_)

    def inside(self, observation: Any, allowed: Array) -> Any:
        """Return the observation with its mask replaced; raises TypeError if it has none."""
        if not self.is_inside:
            raise TypeError("the mask is in the info")
        return {**observation, MASK: allowed.astype(np.asarray(joined(observation[MASK])).dtype)}


class ShownMasks:
    """Masks that a wrapper of an AEC environment shows in infos, until the environment steps again.

    Before it steps, its own infos come back: it may change them in place, or have one dict for several agents.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        # The dict of infos, and an agent's own part of it: empty if it has none.
        self._own: list[tuple[dict[str, Any], str, dict[str, Any]]] = []

    def show(self, agent: str, mask: Any) -> None:
        """Show `mask` in the info of `agent`, where adapters read it."""
        infos = self._env.infos
        self._own.append((infos, agent, {agent: infos[agent]} if agent in infos else {}))
        infos[agent] = {**(infos.get(agent) or {}), MASK: mask}

    def restore(self) -> None:
        """Give the environment its own infos back."""
        for infos, agent, own in reversed(self._own):
            if own:
                infos.update(own)
            else:
                del infos[agent]
        self._own.clear()


def joined(mask: Any) -> Any:
    """Return a mask as one array; in gymnasium, a mask of MultiDiscrete actions is a tuple with one per component."""
    return np.concatenate([np.ravel(joined(part)) for part in mask]) if isinstance(mask, tuple) else mask


def as_mask(allowed: Array) -> Array:
    """Return an int8 mask, as PettingZoo's environments have them."""
    return allowed.astype(np.int8)


def random_legal_action(space: spaces.Space[Any], mask: ArrayLike, random: np.random.Generator) -> Any:
    """Return an action drawn uniformly among the actions that `mask` allows, each component independently.

    `mask` has one element for each value: the masks of all components, concatenated. Raises TypeError for a Box.
    """
    parts = components(np.asarray(joined(mask))[None], choices_of(space))
    chosen = np.array([random.choice(np.flatnonzero(part[0])) for part in parts])
    if isinstance(space, spaces.Discrete):
        return int(chosen[0] + space.start)
    start = space.start.ravel() if isinstance(space, spaces.MultiDiscrete) else 0
    return (chosen + start).reshape(space.shape or ()).astype(space.dtype)
