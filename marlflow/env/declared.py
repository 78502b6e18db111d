"""The declared agents and the spaces of an environment, for wrappers and their error messages."""

from __future__ import annotations

from collections.abc import Container, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gymnasium import spaces

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import enumerated


def declared_agents(env: Any) -> Sequence[str]:
    """Return `possible_agents`; raises ConfigInvalid if there are none, or their names cannot be."""
    agents = list(getattr(env, "possible_agents", ()))
    if not agents:
        raise ConfigInvalid(["the environment does not say beforehand which agents it has (possible_agents)"])
    for number, agent in enumerate(agents):
        if problem := name_problem(agent, agents[:number]):
            raise ConfigInvalid([problem])
    return agents


def name_problem(agent: object, others: Container[str]) -> str | None:
    """Return why `agent` cannot be the name of an agent besides `others`; None if it can."""
    if not isinstance(agent, str):
        name = f"agent_{agent if hasattr(agent, '__index__') else 0}"
        return (
            f"agent {agent!r} is of type {type(agent).__name__}, and agents are named by text; give it a name such as "
            f"{name!r}, in possible_agents, agents and all dicts by agent, or put wrappers=named_agents first"
        )
    return f"two agents are named {agent!r}: give each a name of its own" if agent in others else None


def matching_agents(env: Any, pattern: str) -> list[str]:
    """Return the declared agents whose names match `pattern`, such as `adversary_*`; raises ConfigInvalid if none."""
    declared = declared_agents(env)
    matching = [agent for agent in declared if fnmatchcase(agent, pattern)]
    if not matching:
        raise ConfigInvalid([f"agents={pattern!r} matches none of {enumerated(declared)}"])
    return matching


def describe_space(space: spaces.Space[Any]) -> str:
    """Return a short text for messages: Boxes without bounds."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {describe_space(inner)}' for key, inner in space.items())})"
    return f"Box{space.shape}" if isinstance(space, spaces.Box) else str(space)
