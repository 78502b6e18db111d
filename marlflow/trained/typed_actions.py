"""Reads an action that a person types, of any space that a policy can act in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.sentences import nearest
from marlflow.base.spaces import choices_of, components

_MOST_LISTED = 40


class Unreadable(Exception):
    """The typed text is no legal action; the message says why."""


class TypedActions:
    """The legal actions of one decision, and how to type them.

    `mask` is bool [A] or None, as in the column `action_mask`. `names` are names of Discrete actions, by number from 0.
    """

    def __init__(self, space: spaces.Space[Any], mask: Array | None, names: Mapping[int, str] | None = None) -> None:
        self._space, self._mask = space, None if mask is None else np.asarray(mask, bool).reshape(-1)
        self._start = int(space.start) if isinstance(space, spaces.Discrete) else 0
        self._names = {number: name for number, name in (names or {}).items() if name}

    def legal(self) -> Array:
        """Return the legal values of a Discrete action, from 0."""
        return np.arange(self._size()) if self._mask is None else np.flatnonzero(self._mask)

    def listed(self) -> list[str]:
        """Return how each legal Discrete action can be typed, `4` or `4 x(1,1)`; empty for other spaces."""
        if not isinstance(self._space, spaces.Discrete):
            return []
        return [self._label(number) for number in self.legal().tolist()]

    def first(self) -> str:
        """Return how to type the first legal action; of a Box, the one closest to 0."""
        space = self._space
        if isinstance(space, spaces.Discrete):
            return str(self._start + int(self.legal()[0]))
        if isinstance(space, spaces.Box):
            return " ".join(map(repr, np.clip(0.0, space.low, space.high).ravel().tolist()))
        legal = [part[0].argmax() for part in self._parts()]
        return " ".join(map(str, np.array(legal) + self._starts()))

    def form(self) -> str:
        """Return in a few words what to type."""
        space = self._space
        if isinstance(space, spaces.Discrete):
            return "a number, or a name" if self._names else "a number"
        if isinstance(space, spaces.Box):
            return f"{_numbers(space)} {_range(space.low, space.high)}"
        choices, starts = choices_of(space), self._starts().tolist()
        limits = [f"{low} to {low + count - 1}" for low, count in zip(starts, choices, strict=True)]
        same = f"each from {limits[0]}" if len(set(limits)) == 1 else f"from {', '.join(limits)}"
        return f"{_numbers(space)} {same}"

    def read(self, text: str) -> Array:
        """Return the action as a row of the column `action`, counted from 0; raises Unreadable."""
        space = self._space
        if isinstance(space, spaces.Discrete):
            return np.asarray(self._discrete(text.strip()), np.int64)
        words = text.replace(",", " ").split()
        if len(words) != int(np.prod(space.shape or ())):
            raise Unreadable(f"type {self.form()}, with spaces between them")
        if isinstance(space, spaces.Box):
            return self._box(space, words)
        return self._components(words)

    def _size(self) -> int:
        return int(self._space.n) if isinstance(self._space, spaces.Discrete) else 0

    def _label(self, number: int) -> str:
        name = self._names.get(number)
        return f"{self._start + number}" if name is None else f"{self._start + number} {name}"

    def _discrete(self, text: str) -> int:
        legal = self.legal().tolist()
        # A name first: some games name their actions by other numbers.
        by_name = {name.lower(): number for number, name in self._names.items() if number in legal}
        if text.lower() in by_name:
            return by_name[text.lower()]
        try:
            number = int(text) - self._start
        except ValueError:
            close = nearest(text.lower(), list(by_name))
            hint = f"; did you mean {close!r}?" if close else f"; {self._options(legal)}"
            raise Unreadable(f"{text!r} is no action{hint}") from None
        if number not in legal:
            raise Unreadable(f"{text} is not legal now; {self._options(legal)}")
        return int(number)

    def _options(self, legal: Sequence[int]) -> str:
        if len(legal) > _MOST_LISTED:
            return f"type ? to see the {len(legal)} legal actions"
        return f"legal are {', '.join(map(self._label, legal))}"

    def _box(self, space: spaces.Box, words: Sequence[str]) -> Array:
        try:
            values = np.array(words, np.float64).reshape(space.shape)
        except ValueError:
            raise Unreadable(f"{' '.join(words)!r} are no numbers; type {self.form()}") from None
        if not (np.isfinite(values).all() and (values >= space.low).all() and (values <= space.high).all()):
            raise Unreadable(f"{' '.join(words)} is outside of the space; type {self.form()}")
        return values.astype(np.float32)

    def _components(self, words: Sequence[str]) -> Array:
        starts = self._starts()
        try:
            values = np.array(words, np.int64) - starts
        except ValueError:
            raise Unreadable(f"{' '.join(words)!r} are no whole numbers; type {self.form()}") from None
        if (values < 0).any() or (values >= np.array(choices_of(self._space))).any():
            raise Unreadable(f"{' '.join(words)} is outside of the space; type {self.form()}")
        for place, (value, part) in enumerate(zip(values.tolist(), self._parts(), strict=True)):
            if not part[0, value]:
                allowed = ", ".join(map(str, np.flatnonzero(part[0]) + starts[place]))
                raise Unreadable(f"number {place + 1} may not be {words[place]} now; legal are {allowed}")
        return values.reshape(self._space.shape or ())

    def _starts(self) -> Array:
        count = len(choices_of(self._space))
        return np.broadcast_to(np.ravel(getattr(self._space, "start", 0)), count).astype(np.int64)

    def _parts(self) -> list[Array]:
        choices = choices_of(self._space)
        mask = np.ones(sum(choices), bool) if self._mask is None else self._mask
        return components(mask[None], choices)


def _numbers(space: spaces.Space[Any]) -> str:
    count = int(np.prod(space.shape or ()))
    return "a number" if count == 1 else f"{count} numbers"


def _range(low: Array, high: Array) -> str:
    limits = sorted({(float(least), float(most)) for least, most in zip(low.ravel(), high.ravel(), strict=True)})
    if len(limits) == 1:
        return f"from {limits[0][0]:g} to {limits[0][1]:g}"
    return "from " + ", ".join(f"{least:g} to {most:g}" for least, most in zip(low.ravel(), high.ravel(), strict=True))
