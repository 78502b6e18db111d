"""The network inside an actor."""

from __future__ import annotations

from torch import nn

from marlflow.policy.actor import Actor
from marlflow.policy.adapted import AdaptedActor
from marlflow.policy.warmup import WarmupActor


def network_of(actor: Actor) -> nn.Module | None:
    """Return the torch module that an actor computes with; None if it has none, or is of another kind."""
    if isinstance(actor, WarmupActor):
        return network_of(actor.inner)
    if isinstance(actor, AdaptedActor):
        return actor.network
    return actor if isinstance(actor, nn.Module) else None
