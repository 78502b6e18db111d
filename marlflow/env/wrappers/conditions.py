"""Conditions over labels, such as `goal1 & !unsafe`: `!`, `&`, `|`, parentheses, `true` and `false`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TypeAlias

from marlflow.base.errors import ConfigInvalid

_TOKEN = re.compile(r"\s*(?:([A-Za-z_]\w*)|([!&|()]))")
_Holds: TypeAlias = Callable[[Collection[str]], bool]


class LabelCondition:
    """A condition; raises ConfigInvalid for a text that is none. `atoms` are the labels that it reads."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.atoms: set[str] = set()
        self._tokens = self._split(text)
        self.holds: _Holds = self._either()
        if self._tokens:
            raise self._wrong(f"{self._tokens[0]!r} is one too many")

    def _split(self, text: str) -> list[str]:
        tokens, at = [], 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._wrong(f"{text[at:].strip()[0]!r} is none of its signs")
            tokens.append(match[1] or match[2])
            at = match.end()
        return tokens

    def _wrong(self, reason: str) -> ConfigInvalid:
        return ConfigInvalid([f"{self.text!r} is no condition such as 'goal1 & !(unsafe | late)': {reason}"])

    def _either(self) -> _Holds:
        parts = [self._both()]
        while self._tokens[:1] == ["|"]:
            self._tokens.pop(0)
            parts.append(self._both())
        return lambda true: any(part(true) for part in parts)

    def _both(self) -> _Holds:
        parts = [self._single()]
        while self._tokens[:1] == ["&"]:
            self._tokens.pop(0)
            parts.append(self._single())
        return lambda true: all(part(true) for part in parts)

    def _single(self) -> _Holds:
        token = self._tokens.pop(0) if self._tokens else ""
        if token == "!":
            inner = self._single()
            return lambda true: not inner(true)
        if token == "(":
            inner = self._either()
            if self._tokens[:1] != [")"]:
                raise self._wrong("a parenthesis is not closed")
            self._tokens.pop(0)
            return inner
        if token.lower() in ("true", "false"):
            value = token.lower() == "true"
            return lambda _: value
        if not token or not (token[0].isalpha() or token[0] == "_"):
            raise self._wrong(f"a label is missing before {token!r}" if token else "it ends too early")
        self.atoms.add(token)
        return lambda true: token in true
