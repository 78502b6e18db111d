"""Gives PettingZoo's tests the same space object at each call, of an environment that makes a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_METHODS = ("observation_space", "action_space")


class SameSpaces:
    """Replaces equal spaces by the first one, and remembers the methods that made them, in order.

    PettingZoo's API test ends at the first method that returns a copy, so it would check nothing else. Spaces that
    differ in value are passed on, and fail it.
    """

    def __init__(self) -> None:
        self.copied: dict[str, None] = {}

    def of(self, env: Any) -> Any:
        """Return the environment, with both of its methods replaced."""
        for name in _METHODS:
            setattr(env, name, self._same(name, getattr(env, name)))
        return env

    def _same(self, name: str, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        first: dict[Any, Any] = {}

        def space(agent: Any) -> Any:
            made = method(agent)
            kept = first.setdefault(agent, made)
            if kept is made or kept != made:
                return made
            self.copied[name] = None
            return kept

        return space

    def note(self) -> str:
        """Return what to say of the methods that made copies; "" if none did."""
        if not self.copied:
            return ""
        methods = " and ".join(f"{name}(agent)" for name in self.copied)
        return (
            f"{methods} returned a new object at each call. Training compares spaces by value and is not affected, but "
            "PettingZoo asks for the same object: env.action_space(agent).seed(7) would seed a copy that nobody "
            "samples from. Keep spaces in a dictionary, or decorate the method with functools.lru_cache(maxsize=None)"
        )
