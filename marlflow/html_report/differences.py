"""Where configurations differ, and short names for them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

TARGET: Final = "_target_"
MISSING: Final = "–"
_LONGEST_NAME = 60
_BY_ID = ("policies", "learners")
_MOST_IN_NAME = 3
_MOST_SETTINGS = 3
ALGORITHM: Final = "algorithm"

Config: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key whose value is not the same in all configurations; `values` has the text of each."""

    key: str
    values: tuple[str, ...]


class _Absent:
    """The value of a key that a configuration does not have."""


_ABSENT = _Absent()


def varied(configs: Sequence[Config], left_out: Sequence[str] = ()) -> dict[str, tuple[Any, ...]]:
    """Return the values of each key that is not the same in all configurations, except in the top-level `left_out`.

    Objects of different classes are one difference: their settings cannot be compared.

    >>> varied([{"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}])
    {'a.b': (1, 3)}
    """
    known = [{key: value for key, value in config.items() if key not in left_out} for config in configs]
    return dict(_varied("", known)) if known else {}


def _varied(path: str, values: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    if len({identity(value) for value in values}) == 1:
        return
    if all(isinstance(value, Mapping) for value in values) and len({str(one.get(TARGET)) for one in values}) == 1:
        for key in dict.fromkeys(key for value in values for key in value):
            inner = [value.get(key, _ABSENT) for value in values]
            yield from _varied(f"{path}.{key}" if path else str(key), inner)
        return
    yield path, tuple(values)


def differences(groups: Sequence[Sequence[Config]], left_out: Sequence[str] = ()) -> list[KeyDifference]:
    """Return all differences between groups of configurations, which may also differ within a group.

    >>> differences([[{"a": 1}], [{"a": 2}, {"a": 3}]])
    [KeyDifference(key='a', values=('1', '2 or 3'))]
    """
    found = varied([config for group in groups for config in group], left_out)
    return [
        KeyDifference(key, tuple(" or ".join(dict.fromkeys(map(as_text, of))) for of in _parted(values, groups)))
        for key, values in found.items()
    ]


def constant_within(groups: Sequence[Sequence[Config]], left_out: Sequence[str] = ()) -> dict[str, tuple[Any, ...]]:
    """Return the value in each group of the keys that differ between groups, and not within one.

    >>> constant_within([[{"a": 1, "b": 1}], [{"a": 2, "b": 1}, {"a": 2, "b": 2}]])
    {'a': (1, 2)}
    """
    found = varied([config for group in groups for config in group], left_out)
    by_key = {key: _parted(values, groups) for key, values in found.items()}
    return {
        key: tuple(of[0] for of in parts)
        for key, parts in by_key.items()
        if all(len(set(map(identity, of))) == 1 for of in parts)
    }


def _parted(values: Sequence[Any], groups: Sequence[Sequence[Config]]) -> list[Sequence[Any]]:
    left = iter(values)
    return [[next(left) for _ in group] for group in groups]


def identity(value: Any) -> str:
    """Return a text that is the same for equal values: 1 and 1.0 are, 1 and true are not.

    >>> identity({"b": 1.0, "a": None}) == identity({"a": None, "b": 1}), identity(True) == identity(1)
    (True, False)
    """
    return json.dumps(whole(value), sort_keys=True, default=str)


def whole(value: Any) -> Any:
    """Return a value with all floats that are whole numbers as such, so that 1.0 is the same as 1."""
    if isinstance(value, Mapping):
        return {str(key): whole(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def class_name(value: Any) -> str:
    """Return the name of an object's class, or of the function that makes it; empty for other values.

    >>> class_name({"_target_": "marlflow.algorithms.ppo.PPO"}), class_name({"_target_": "mpe2.simple_v3.env"})
    ('PPO', 'simple_v3.env')
    """
    target = value.get(TARGET) if isinstance(value, Mapping) else None
    if not isinstance(target, str):
        return ""
    *modules, name = target.split(".")
    # The name of a function alone says little.
    return name if name[:1].isupper() else ".".join([*modules[-1:], name])


def as_text(value: Any) -> str:
    """Return a value in a few words: objects by their class or function, in lists and other mappings too.

    A small object, such as a schedule, is shown with its settings.

    >>> as_text({"_target_": "marlflow.algorithms.ppo.PPO", "model": {}, "epochs": 4}), as_text([1, 2]), as_text(None)
    ('PPO', '[1, 2]', 'null')
    >>> as_text({"_target_": "marlflow.base.schedules.Linear", "start": 0.1, "end": 0.0, "agent_steps": 500})
    'Linear(0.1, 0.0, 500)'
    >>> as_text([{"_target_": "marlflow.env.wrappers.shipped.joint_state"}]), as_text({"prey": {"return_mean": 5}})
    ('[shipped.joint_state]', '{prey: {return_mean: 5}}')
    """
    if isinstance(value, _Absent):
        return MISSING
    if isinstance(value, Mapping):
        if name := class_name(value):
            settings = [setting for key, setting in value.items() if key != TARGET]
            is_small = len(settings) <= _MOST_SETTINGS and all(type(one) in (int, float) for one in settings)
            return f"{name}({', '.join(map(str, settings))})" if settings and is_small else name
        if name := class_name(value.get(ALGORITHM)):
            return name
        return f"{{{', '.join(f'{key}: {as_text(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(as_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def short_names(configs: Sequence[Config], left_out: Sequence[str] = ()) -> list[str]:
    """Return a name for each configuration from its differences; empty texts if that would be too long.

    A setting of one of several policies or learners is shown with its id, and an algorithm without its key.

    >>> short_names([{"a": {"rate": 1}}, {"a": {"rate": 2}}])
    ['rate=1', 'rate=2']
    >>> short_names([{"policies": {"prey": {"rate": rate}, "hunter": {}}} for rate in (1, 2)])
    ['prey.rate=1', 'prey.rate=2']
    >>> short_names([{"algorithm": {"_target_": name}} for name in ("ppo.PPO", "dqn.DQN")])
    ['PPO', 'DQN']
    """
    found = varied(configs, left_out)
    if not 0 < len(found) <= _MOST_IN_NAME:
        return [""] * len(configs)
    names = [
        named({key: values[place] for key, values in found.items()}, short_keys(list(found), configs))
        for place in range(len(configs))
    ]
    return names if all(len(name) <= _LONGEST_NAME for name in names) else [""] * len(configs)


def named(values: Mapping[str, Any], short: Mapping[str, str]) -> str:
    """Return settings as a name; `short` has the shown form of each key."""
    parts = []
    for key, value in values.items():
        owner = short[key].removesuffix(ALGORITHM).rstrip(".") if short[key].endswith(ALGORITHM) else short[key]
        parts.append(f"{owner}={as_text(value)}" if owner else as_text(value))
    return ", ".join(parts)


def short_keys(keys: Sequence[str], configs: Sequence[Config]) -> dict[str, str]:
    """Return the shortest ends of keys that distinguish them, with an id if configurations have several of a kind.

    >>> short_keys(["policies.prey.rate"], [{"policies": {"prey": {}, "hunter": {}}}])
    {'policies.prey.rate': 'prey.rate'}
    """
    sections = {name: [config.get(name) for config in configs] for name in _BY_ID}
    several = {name for name, of in sections.items() if any(isinstance(one, Mapping) and len(one) > 1 for one in of)}
    parts = [_key_parts(key, several) for key in keys]
    short = keys
    for length in range(max((len(rest) for _, rest in parts), default=0), 0, -1):
        shorter = [".".join([*owner, *rest[-length:]]) for owner, rest in parts]
        if len(set(shorter)) < len(shorter):
            break
        short = shorter
    return dict(zip(keys, short, strict=True))


def _key_parts(key: str, several: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the id in a key, if its section has several, and the other parts."""
    section, *parts = key.split(".")
    return (parts[:1], parts[1:]) if section in several and len(parts) > 1 else ([], [section, *parts])
