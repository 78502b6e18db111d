"""Groups of agents with the same spaces, named after their agents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gymnasium import spaces


def groups_of(spaces_of: Mapping[str, tuple[spaces.Space[Any], spaces.Space[Any]]]) -> dict[str, list[str]]:
    """Return the agents of each group, by name without number; a second group of a name is named after its first agent.

    `spaces_of` has each agent's spaces of observations and actions.
    """
    groups: dict[str, list[str]] = {}
    for agent, pair in spaces_of.items():
        name = _without_number(agent)
        alike = (key for key in _named(groups, name) if spaces_of[groups[key][0]] == pair)
        key = next(alike, agent if name in groups else name)
        groups.setdefault(key, []).append(agent)
    return groups


def _named(groups: Mapping[str, Sequence[str]], name: str) -> Iterator[str]:
    return (key for key in groups if _without_number(key) == name)


def _without_number(agent: str) -> str:
    return re.sub(r"[_ ]\d+$", "", agent)
