"""The state that a part of an algorithm keeps at its learner: saved in checkpoints, restored, and reported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from marlflow.base.arrays import Array


def saved_name(name: str) -> str:
    """Return the name that a part's state has in checkpoints, apart from the learner's own."""
    return f"part.{name}"


class PartState:
    """Base of such states, one array each, saved as `part.<name>`; stages find it by `learner.part_state(name)`."""

    name: str
    is_constant: ClassVar[bool] = False
    """Whether it never changes after `begin`, so that it may be kept by each of several learners."""
    value: Array
    """The state, unless a class has methods of its own to save it; always of the same shape and dtype."""
    terms: Mapping[str, float] = MappingProxyType({})
    """Numbers that the learner reports with the terms of the losses of an update."""

    def begin(self, module: Any) -> None:
        """Begin with the learner's network: at the start, and again after a warm start has changed its parameters."""

    def state(self) -> Array:
        """Return a copy of the state."""
        return self.value.copy()

    def load_state(self, state: Array) -> None:
        """Restore what `state` returned."""
        self.value = state.copy()

    def restarted(self, start: Array) -> Array:
        """Return the state after a reset of the learner, given that of a new one."""
        return start
