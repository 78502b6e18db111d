"""Direct access to an AEC environment's attributes."""

from __future__ import annotations

from typing import Any

from pettingzoo.utils.wrappers import BaseWrapper, OrderEnforcingWrapper

_ATTRIBUTES = ("agents", "agent_selection", "rewards", "terminations", "truncations", "infos")
_FORWARDING = (BaseWrapper.__getattr__, OrderEnforcingWrapper.__getattr__)
_KNOWN_MODULES = ("pettingzoo.utils.wrappers.", "marlflow.env.wrapping")


def innermost_wrapper(env: Any) -> Any:
    """Return the innermost wrapper with the same agents, selection, rewards, ends and infos as `env`.

    Valid until the next reset. Skips only wrappers of PettingZoo and marlflow that set none of these.
    """
    # PettingZoo's wrappers forward each attribute through a `__getattr__` call per layer, and a step reads six.
    while _forwards_attributes(env):
        env = env.env
    return env


def _forwards_attributes(env: Any) -> bool:
    kind = type(env)
    if not kind.__module__.startswith(_KNOWN_MODULES) or getattr(kind, "__getattr__", None) not in _FORWARDING:
        return False
    return not any(name in env.__dict__ or hasattr(kind, name) for name in _ATTRIBUTES)
