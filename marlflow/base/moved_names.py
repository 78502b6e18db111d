"""Import paths of before that runs, data sets and configurations have, and where their parts are now."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_ROOMS: Final = {
    "games": "cartpole_family cartpole_team cliff gridworld guess_number matrix_games pendulum_team recall relay "
    "sacrifice sign token_signal toll",
    "simulators": "gymnasium_team lbf openspiel pettingzoo_registry rware",
    "wrappers": "automaton automaton_task managed reward_scale shield",
}
_SHIPPED: Final = (
    "agent_indicator black_death clip_observations flatten_actions gray joint_state last_action mask_in_info "
    "named_agents pad_actions pad_observations random_opening resize reward_scale widen_bounds"
)
_ROOM_OF: Final = {module: room for room, modules in _ROOMS.items() for module in modules.split()}
_MOVED: Final = re.compile(
    rf"marlflow\.(?:env\.(?P<module>{'|'.join(_ROOM_OF)})|env\.wrappers\.(?P<wrapper>{'|'.join(_SHIPPED.split())})"
    r"|sampling\.matchmaking)(?=\.\w+$|$)"
)


def current_name(path: str) -> str:
    """Return where the part at an import path is now; other paths as they are.

    >>> current_name("marlflow.env.lbf.parallel_env"), current_name("marlflow.env.wrappers.gray")
    ('marlflow.env.simulators.lbf.parallel_env', 'marlflow.env.wrappers.shipped.gray')
    """
    if (found := _MOVED.match(path)) is None:
        return path
    if module := found["module"]:
        new = f"env.{_ROOM_OF[module]}.{module}"
    else:
        new = f"env.wrappers.shipped.{found['wrapper']}" if found["wrapper"] else "matchmaking.matchmakers"
    return f"marlflow.{new}{path[found.end() :]}"


def with_current_names(values: Any) -> Any:
    """Return plain data with the import paths of before, wherever they are, as they are now."""
    if isinstance(values, str):
        return current_name(values)
    if isinstance(values, Mapping):
        return {key: with_current_names(value) for key, value in values.items()}
    return [with_current_names(value) for value in values] if isinstance(values, list) else values


def moved_to(path: str) -> str:
    """Return the end of the error for a path that cannot be imported: its new name; empty if it has not moved."""
    return "" if (name := current_name(path)) == path else f"; it has become {name}"
