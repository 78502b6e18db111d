"""The declared agents and the spaces of an environment, for wrappers and their error messages."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from gymnasium import spaces

from marlflow.base.errors import ConfigInvalid


def declared_agents(env: Any) -> Sequence[str]:
    """Return `possible_agents`; raises ConfigInvalid if there are none."""
    agents = list(getattr(env, "possible_agents", ()))
    if not agents:
        raise ConfigInvalid(["the environment does not say beforehand which agents it has (possible_agents)"])
    return agents


def matching_agents(env: Any, pattern: str) -> list[str]:
    """Return the declared agents whose names match `pattern`, such as `adversary_*`; raises ConfigInvalid if none."""
    declared = declared_agents(env)
    matching = [agent for agent in declared if fnmatchcase(agent, pattern)]
    if not matching:
        raise ConfigInvalid([f"agents={pattern!r} matches none of {', '.join(declared)}"])
    return matching


def describe_space(space: spaces.Space[Any]) -> str:
    """Return a short text for messages: Boxes without bounds."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {describe_space(inner)}' for key, inner in space.items())})"
    return f"Box{space.shape}" if isinstance(space, spaces.Box) else str(space)
