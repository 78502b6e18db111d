"""Finds the innermost wrapper that holds an AEC environment's attributes.

PettingZoo's wrappers forward `env.rewards` and the like through one `__getattr__` call each, and a step reads six.
"""

from __future__ import annotations

from typing import Any

from pettingzoo.utils.wrappers import BaseWrapper, OrderEnforcingWrapper

_READ = ("agents", "agent_selection", "rewards", "terminations", "truncations", "infos")
_HANDS_ON = (BaseWrapper.__getattr__, OrderEnforcingWrapper.__getattr__)
_KNOWN = ("pettingzoo.utils.wrappers.", "marlflow.env.wrapping")


def innermost_wrapper(env: Any) -> Any:
    """Return the innermost object with the same agents, selection, rewards, ends and infos as `env`.

    Valid from one reset to the next. Only wrappers of PettingZoo and marlflow, which set none of these in a step, are
    skipped.
    """
    while _hands_on(env):
        env = env.env
    return env


def _hands_on(env: Any) -> bool:
    kind = type(env)
    if not kind.__module__.startswith(_KNOWN) or getattr(kind, "__getattr__", None) not in _HANDS_ON:
        return False
    return not any(name in env.__dict__ or hasattr(kind, name) for name in _READ)
