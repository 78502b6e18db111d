"""Where configurations differ, and short names for them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TARGET: Final = "_target_"
MISSING: Final = "–"
_LONGEST_NAME = 60
_BY_ID = ("policies", "learners")
_MOST_IN_NAME = 3
_MOST_SETTINGS = 3


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key whose value is not the same in all configurations; `values` has the text of each."""

    key: str
    values: tuple[str, ...]


class _Absent:
    """The value of a key that a configuration does not have."""


_ABSENT = _Absent()


def differences(configs: Sequence[Mapping[str, Any]], left_out: Sequence[str] = ()) -> list[KeyDifference]:
    """Return all differences, except in the top-level keys `left_out`.

    Objects of different classes are one difference: their settings cannot be compared.

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

    A small object, such as a schedule, is shown with its settings.

    >>> as_text({"_target_": "marlflow.algorithms.ppo.PPO", "model": {}, "epochs": 4}), as_text([1, 2]), as_text(None)
    ('PPO', '[1, 2]', 'null')
    >>> as_text({"_target_": "marlflow.base.schedules.Linear", "start": 0.1, "end": 0.0, "agent_steps": 500})
    'Linear(0.1, 0.0, 500)'
    """
    if isinstance(value, _Absent):
        return MISSING
    if isinstance(value, Mapping):
        if isinstance(target := value.get(TARGET), str):
            *modules, name = target.split(".")
            # The name of a function alone says little.
            name = name if name[:1].isupper() else ".".join([*modules[-1:], name])
            settings = [setting for key, setting in value.items() if key != TARGET]
            is_small = len(settings) <= _MOST_SETTINGS and all(type(one) in (int, float) for one in settings)
            return f"{name}({', '.join(map(str, settings))})" if settings and is_small else name
        if isinstance(value.get("algorithm"), Mapping):
            return as_text(value["algorithm"])
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def short_names(configs: Sequence[Mapping[str, Any]], left_out: Sequence[str] = ()) -> list[str]:
    """Return a name for each configuration from its differences; empty texts if that would be too long.

    A setting of one of several policies or learners is shown with its id.

    >>> short_names([{"a": {"rate": 1}}, {"a": {"rate": 2}}])
    ['rate=1', 'rate=2']
    >>> short_names([{"policies": {"prey": {"rate": rate}, "hunter": {}}} for rate in (1, 2)])
    ['prey.rate=1', 'prey.rate=2']
    """
    found = differences(configs, left_out)
    if not 0 < len(found) <= _MOST_IN_NAME:
        return [""] * len(configs)
    several = {name for name in _BY_ID if any(len(config.get(name) or ()) > 1 for config in configs)}
    keys = _short_keys([_key_parts(difference.key, several) for difference in found])
    names = [
        ", ".join(f"{key}={one.values[place]}" for key, one in zip(keys, found, strict=True))
        for place in range(len(configs))
    ]
    return names if all(len(name) <= _LONGEST_NAME for name in names) else [""] * len(configs)


def _key_parts(key: str, several: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the id in a key, if its section has several, and the other parts."""
    section, *parts = key.split(".")
    return (parts[:1], parts[1:]) if section in several and len(parts) > 1 else ([], [section, *parts])


def _short_keys(keys: Sequence[tuple[list[str], list[str]]]) -> list[str]:
    """Return the ids of keys, with the shortest ends of their other parts that tell them apart."""
    for length in range(1, max(len(parts) for _, parts in keys) + 1):
        short = [".".join([*owner, *parts[-length:]]) for owner, parts in keys]
        if len(set(short)) == len(short):
            return short
    return [".".join([*owner, *parts]) for owner, parts in keys]
