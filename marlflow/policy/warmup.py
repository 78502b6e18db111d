"""Warm-up exploration: uniformly random actions that fill a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from marlflow.base.batch import Array
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Mode, MovableActor, WeightedActor
from marlflow.policy.scripted import RandomActor


class WarmupActor:
    """Acts uniformly at random while the schedule `acts_uniformly` is above 0, then as `actor`.

    Raises ConfigInvalid as RandomActor.
    """

    def __init__(self, actor: WeightedActor, action_space: spaces.Space[Any]) -> None:
        self._actor, self._uniform = actor, RandomActor(action_space)
        self.acts_uniformly = False

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        # Evaluation modes must show what the actor has learned.
        chooser = self._uniform if self.acts_uniformly and mode == "explore" else self._actor
        return chooser.act(obs, action_mask, memory, mode, generator)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.acts_uniformly = values.get("acts_uniformly", float(self.acts_uniformly)) > 0.0
        self._actor.set_schedule(values)

    def move_to(self, device: str) -> None:
        if isinstance(self._actor, MovableActor):
            self._actor.move_to(device)

    def flat(self) -> Array:
        return self._actor.flat()

    def load_flat(self, flat: Array) -> None:
        self._actor.load_flat(flat)
