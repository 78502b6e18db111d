"""Which object in a chain of PettingZoo's wrappers holds what an AEC environment says of itself.

PettingZoo's wrappers hand `env.rewards` and its like inwards, one `__getattr__` call and more for each wrapper, and a
turn reads six of them. What is not overridden on the way can as well be read from the inside.
"""

from __future__ import annotations

from typing import Any

from pettingzoo.utils.wrappers import BaseWrapper, OrderEnforcingWrapper

_READ = ("agents", "agent_selection", "rewards", "terminations", "truncations", "infos")
_HANDS_ON = (BaseWrapper.__getattr__, OrderEnforcingWrapper.__getattr__)
_KNOWN = ("pettingzoo.utils.wrappers.", "marlflow.env.wrapping")


def attribute_holder(env: Any) -> Any:
    """The innermost object that says the same as `env` of its agents, its selection, rewards, ends and infos.

    `env` must have been reset, and the answer holds until it is reset again. Only PettingZoo's wrappers and marlflow's
    are passed, which are known to set none of these in a step; any other wrapper is taken at its own word.
    """
    while _hands_on(env):
        env = env.env
    return env


def _hands_on(env: Any) -> bool:
    kind = type(env)
    if not kind.__module__.startswith(_KNOWN) or getattr(kind, "__getattr__", None) not in _HANDS_ON:
        return False
    return not any(name in env.__dict__ or hasattr(kind, name) for name in _READ)
