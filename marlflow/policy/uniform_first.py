"""Uniformly random actions at first, so that a replay begins with a wide choice; then those of an actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from marlflow.base.batch import Array
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Mode, MovableActor, WeightedActor
from marlflow.policy.scripted import RandomActor


class UniformFirst:
    """Explores uniformly while the scheduled `acts_uniformly` is above 0; is `actor` otherwise, and in evaluations.

    Raises ConfigInvalid for an action space that it cannot be uniform in.
    """

    def __init__(self, actor: WeightedActor, action_space: spaces.Space[Any]) -> None:
        self._actor, self._uniform = actor, RandomActor(action_space)
        self.acts_uniformly = False

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        """Uniform over the legal actions or the box, or what the actor chooses."""
        chooser = self._uniform if self.acts_uniformly and mode == "explore" else self._actor
        return chooser.act(obs, action_mask, memory, mode, generator)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes `acts_uniformly`; the rest is the actor's concern."""
        self.acts_uniformly = values.get("acts_uniformly", float(self.acts_uniformly)) > 0.0
        self._actor.set_schedule(values)

    def move_to(self, device: str) -> None:
        """The actor acts on a torch device from here on, if it can."""
        if isinstance(self._actor, MovableActor):
            self._actor.move_to(device)

    def flat(self) -> Array:
        """A copy of the actor's parameters, as one float32 vector."""
        return self._actor.flat()

    def load_flat(self, flat: Array) -> None:
        """Replaces the actor's parameters by those of `flat`; raises WeightsMismatch if it has another size."""
        self._actor.load_flat(flat)
