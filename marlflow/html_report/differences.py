"""Where configurations differ, and short names for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TARGET: Final = "_target_"
MISSING: Final = "–"
_LONGEST_NAME = 48
_MOST_IN_NAME = 3


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key whose value is not the same in all configurations; `values` has the text of each."""

    key: str
    values: tuple[str, ...]


class _Absent:
    """Stands for the value of a key that a configuration does not have."""


_ABSENT = _Absent()


def differences(configs: Sequence[Mapping[str, Any]], left_out: Sequence[str] = ()) -> list[KeyDifference]:
    """Return all differences, except in the top-level keys `left_out`.

    Objects of different classes are one difference, shown by their classes: their settings cannot be compared.

    >>> differences([{"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}])
    [KeyDifference(key='a.b', values=('1', '3'))]
    """
    known = [{key: value for key, value in config.items() if key not in left_out} for config in configs]
    return list(_differences("", known)) if known else []


def _differences(path: str, values: Sequence[Any]) -> Iterator[KeyDifference]:
    if len({identity(value) for value in values}) == 1:
        return
    if all(isinstance(value, Mapping) for value in values) and len({str(one.get(TARGET)) for one in values}) == 1:
        for key in dict.fromkeys(key for value in values for key in value):
            inner = [value.get(key, _ABSENT) for value in values]
            yield from _differences(f"{path}.{key}" if path else str(key), inner)
        return
    yield KeyDifference(path, tuple(map(as_text, values)))


def identity(value: Any) -> str:
    """Return a text that is the same for equal values: 1 and 1.0 are, 1 and true are not.

    >>> identity({"b": 1.0, "a": None}) == identity({"a": None, "b": 1}), identity(True) == identity(1)
    (True, False)
    """
    return json.dumps(_whole(value), sort_keys=True, default=str)


def _whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def as_text(value: Any) -> str:
    """Return a value in a few words: objects by their class or function, other mappings and lists as JSON.

    >>> as_text({"_target_": "marlflow.algorithms.ppo.PPO", "epochs": 4}), as_text([1, 2]), as_text(None)
    ('PPO', '[1, 2]', 'null')
    """
    if isinstance(value, _Absent):
        return MISSING
    if isinstance(value, Mapping):
        if isinstance(target := value.get(TARGET), str):
            *modules, name = target.split(".")
            # The name of a function alone says little.
            return name if name[:1].isupper() else ".".join([*modules[-1:], name])
        if isinstance(value.get("algorithm"), Mapping):
            return as_text(value["algorithm"])
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def short_names(configs: Sequence[Mapping[str, Any]], left_out: Sequence[str] = ()) -> list[str]:
    """Return a name for each configuration from its differences; empty texts if that would be too long.

    >>> short_names([{"a": {"rate": 1}}, {"a": {"rate": 2}}])
    ['rate=1', 'rate=2']
    """
    found = differences(configs, left_out)
    if not 0 < len(found) <= _MOST_IN_NAME:
        return [""] * len(configs)
    keys = _short_keys([difference.key for difference in found])
    names = [
        ", ".join(f"{key}={one.values[place]}" for key, one in zip(keys, found, strict=True))
        for place in range(len(configs))
    ]
    return names if all(len(name) <= _LONGEST_NAME for name in names) else [""] * len(configs)


def _short_keys(keys: Sequence[str]) -> list[str]:
    """Return the shortest ends of dotted keys that tell them apart."""
    parts = [key.split(".") for key in keys]
    for length in range(1, max(map(len, parts)) + 1):
        short = [".".join(one[-length:]) for one in parts]
        if len(set(short)) == len(short):
            return short
    return list(keys)
