"""Warm-up exploration: uniformly random actions that fill a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Actor, Mode, MovableActor, NetworkActor, Scheduled, WeightedActor
from marlflow.policy.adapted import AdaptedActor
from marlflow.policy.scripted import RandomActor


class WarmupActor:
    """Acts uniformly at random while the schedule `acts_uniformly` is above 0, then as `actor`.

    Raises ConfigInvalid as RandomActor.
    """

    def __init__(self, actor: WeightedActor, action_space: spaces.Space[Any]) -> None:
        self._actor, self._uniform = actor, RandomActor(action_space)
        self.acts_uniformly: bool | Array = False

    @property
    def inner(self) -> WeightedActor:
        """The actor without warm-up."""
        return self._actor

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        # Evaluation modes must show the trained actor.
        chooser = self._uniform if self.acts_uniformly and mode == "explore" else self._actor
        return chooser.act(obs, action_mask, memory, mode, generator)

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        """Choose by outputs of the actor's network (see NetworkActor), and at random in rows that act uniformly."""
        assert isinstance(self._actor, NetworkActor)
        action, logp = self._actor.choose(outputs, action_mask, mode, generator)
        if mode == "explore" and np.any(self.acts_uniformly):
            rows = np.flatnonzero(np.broadcast_to(self.acts_uniformly, len(generator)))
            legal = None if action_mask is None else action_mask[rows]
            acted = self._uniform.act(rows, legal, None, mode, generator.only(rows))
            action[rows], logp[rows] = acted.action, acted.behavior_logp
        return action, logp

    def set_schedule(self, values: Mapping[str, Scheduled]) -> None:
        if "acts_uniformly" in values:
            self.acts_uniformly = values["acts_uniformly"] > 0.0
        # Values per row are given to a NetworkActor only.
        self._actor.set_schedule(cast(Mapping[str, float], values))

    def move_to(self, device: str) -> None:
        if isinstance(self._actor, MovableActor):
            self._actor.move_to(device)

    def flat(self) -> Array:
        return self._actor.flat()

    def load_flat(self, flat: Array) -> None:
        self._actor.load_flat(flat)


def network_of(actor: Actor) -> nn.Module | None:
    """Return the torch module that an actor computes with; None if it has none, or is another kind of policy."""
    if isinstance(actor, WarmupActor):
        return network_of(actor.inner)
    if isinstance(actor, AdaptedActor):
        return actor.network
    return actor if isinstance(actor, nn.Module) else None
