"""The parameters of one policy by name, equal for all learners of its kind, to begin with parameters of another run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from torch import nn

from marlflow.learner.loss_groups import actors_of

ACTOR: Final = "actor"
"""The first part of the names of an actor's parameters."""


def named_parameters(module: Any, policies: Sequence[str], policy: str) -> dict[str, nn.Parameter]:
    """Return the parameters of a learner's network that belong to `policy`, one of its `policies`, by name.

    The names of its actor's parameters begin with `actor.`. If the learner trains no other policy, all its parameters
    are included. Running statistics count as parameters.
    """
    actors = actors_of(module, policies)
    named = {f"{ACTOR}.{name}": parameter for name, parameter in actors[policy].named_parameters()}
    if len(policies) > 1:
        return named
    acting = set(named.values())
    # Named from the network's own attributes: an actor may be reachable by several of them.
    rest = {name: parameter for name, parameter in module.named_parameters() if parameter not in acting}
    return {**named, **rest}


def is_part(part: str, name: str) -> bool:
    """Return whether `part` names a parameter: itself, a submodule that it is in, or `critic`, all but the actor.

    >>> [is_part(part, "actor.torso.weight") for part in ("actor", "actor.torso", "actor.tor", "critic")]
    [True, True, False, False]
    >>> is_part("critic", "critic_head.weight")
    True
    """
    if part == "critic":
        return name.partition(".")[0] != ACTOR
    return f"{name}.".startswith(f"{part}.")
