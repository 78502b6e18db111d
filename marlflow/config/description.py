"""Describe an experiment as plain data, in the form of a configuration, from which it can be built again."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final

import numpy as np

from marlflow.algorithms.from_run import FromRun
from marlflow.config import experiment as sections
from marlflow.config.construct import settings_of
from marlflow.config.experiment import Env, Experiment, Stop
from marlflow.config.target_nodes import ARGS, ENV_KEYS, KEYWORDS, PARTIAL, TARGET
from marlflow.env.make import Wrapper
from marlflow.league.league import League
from marlflow.learner.optimizer import TorchOptimizer
from marlflow.runtime import spec
from marlflow.sampling.mapping import Rule

_NOT_SET: Final = "(not set)"
_LONGEST_SHOWN: Final = 60

# The environment `functional`, of a user's own.
_FUNCTIONAL = "marlflow.env.functional.own.batched_env"


@dataclass(frozen=True, slots=True)
class Description:
    """An experiment as numbers, texts, lists and mappings; objects have a `_target_`, their import path.

    `lost` has a sentence for each value that cannot be built again from it: a function of a script, for example.
    """

    values: Mapping[str, Any]
    lost: Sequence[str]


def describe(experiment: Experiment) -> Description:
    """Describe an experiment, with all defaults."""
    describer = _Describer()
    return Description(describer.plain(experiment, ""), describer.lost)


def plain(value: Any) -> Any:
    """Describe a part of an experiment."""
    return _Describer().plain(value, "")


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the settings that differ between two descriptions, with both values.

    >>> [*changes({"stop": {"env_steps": 400, "time_s": None}}, {"stop": {"env_steps": 800, "time_s": None}})]
    ['stop.env_steps 400 → 800']
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from changes(before.get(key, _NOT_SET), after.get(key, _NOT_SET), f"{path}.{key}" if path else key)
    elif before != after:
        yield f"{path} {_shown(before)} → {_shown(after)}"


def _shown(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


@dataclass(slots=True)
class _Describer:
    lost: list[str] = field(default_factory=list)

    def plain(self, value: Any, path: str) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        # YAML's safe_dump refuses subclasses, such as a str enum. bool comes first, as a subclass of int.
        for kind in (bool, int, float, str):
            if isinstance(value, kind):
                return kind(value)
        if isinstance(value, Mapping):
            return {str(key): self.plain(element, f"{path}.{key}") for key, element in value.items()}
        if isinstance(value, Sequence | set | frozenset):
            return [self.plain(element, f"{path}[{number}]") for number, element in enumerate(value)]
        return None if value is None else self._described(value, path)

    def _described(self, value: Any, path: str) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, path)
        if isinstance(value, functools.partial):
            positional = {ARGS: self.plain(value.args, path)} if value.args else {}
            return {
                TARGET: self._name(value.func, path),
                PARTIAL: True,
                **positional,
                **self.plain(value.keywords, path),
            }
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if hasattr(value, "__qualname__"):
            return self._name(value, path)
        return self._made(value, path) or self._object(value, path)

    def _made(self, value: Any, path: str) -> dict[str, Any] | None:
        """Describe an object by the settings that made it, if these are known."""
        if inspect.ismodule(value) or type(value).__module__ == "builtins" or (settings := settings_of(value)) is None:
            return None
        return {TARGET: self._name(type(value), path), **self.plain(settings, path)}

    def _dataclass(self, value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, Env):
            wrappers = [self._called(one, f"{path}.wrappers[{n}]") for n, one in enumerate(value.wrappers)]
            arguments = dict(value.arguments)
            if value.factory == _FUNCTIONAL and callable(arguments.get("make")):
                # It takes an import path as well, which is what the record has.
                self._name(arguments.pop("make"), f"{path}.make")
            self._check_arguments(arguments, path)
            named = plain(value.arguments)
            collide = {key: named.pop(key) for key in ENV_KEYS if key in named}
            made = {**self._called(value.factory, path), **named, **({KEYWORDS: collide} if collide else {})}
            return {**made, **self._fields(value, path, "factory", "arguments", "wrappers"), "wrappers": wrappers}
        if isinstance(value, Stop):
            goals = {name: {"return_mean": goal} for name, goal in value.policies.items()}
            return {**self._fields(value, path, "policies"), "policies": goals}
        if isinstance(value, TorchOptimizer):
            return {TARGET: self._name(value.make, path), **self.plain(value.settings, path)}
        if isinstance(value, Experiment):
            return {**self._fields(value, path, "mapping"), "mapping": self._function_or_data(value.mapping, "mapping")}
        if isinstance(value, League):
            made = {TARGET: self._name(type(value), path), **self._fields(value, path, "outcome")}
            return {**made, "outcome": self._function_or_data(value.outcome, f"{path}.outcome")}
        is_section = type(value).__module__ in (sections.__name__, spec.__name__) or isinstance(value, Rule | FromRun)
        made = {} if is_section else {TARGET: self._name(type(value), path)}
        return {**made, **self._fields(value, path)}

    def _fields(self, value: Any, path: str, *left_out: str) -> dict[str, Any]:
        names = [one.name for one in fields(value) if one.init and one.name not in left_out]
        return {name: self.plain(getattr(value, name), f"{path}.{name}" if path else name) for name in names}

    def _check_arguments(self, values: Any, path: str) -> None:
        """Note what a factory's arguments have beside plain data, because these are not built or imported."""
        if isinstance(values, Mapping):
            for name, value in values.items():
                self._check_arguments(value, f"{path}.{name}")
        elif isinstance(values, list | tuple):
            for number, value in enumerate(values):
                self._check_arguments(value, f"{path}[{number}]")
        elif not isinstance(values, bool | int | float | str | np.generic | os.PathLike | None):
            self.lost.append(f"{path} is of type {type(values).__name__}, which is no plain data")

    def _function_or_data(self, value: Any, path: str) -> Any:
        # A configuration writes such a function as one that is called with arguments.
        return self._called(value, path) if callable(value) else self.plain(value, path)

    def _called(self, value: Any, path: str) -> dict[str, Any]:
        """Describe a function with its arguments, or an object, as a mapping."""
        if isinstance(value, Wrapper):
            return {TARGET: value.name, **self.plain(value.arguments, path)}
        if isinstance(value, functools.partial):
            if value.args:
                self.lost.append(f"{path} is a partial with arguments without names; give them by name")
            return {**self._called(value.func, path), **self.plain(value.keywords, path)}
        if isinstance(value, str):
            return {TARGET: value}
        if is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value, path)
        if not hasattr(value, "__qualname__"):
            return self._made(value, path) or {TARGET: self._object(value, path)}
        return {TARGET: self._name(value, path)}

    def _name(self, value: Any, path: str) -> str:
        module, name = str(value.__module__), str(value.__qualname__)
        if module == "__main__":
            self.lost.append(f"{path} is {name} of the script that was started, which cannot be imported")
        elif getattr(sys.modules.get(module), name, None) is not value:
            where = "is not at the top level of its module" if "." in name else "cannot be found there"
            self.lost.append(f"{path} is {name} of {module}, which {where}")
        return f"{module}.{name}"

    def _object(self, value: Any, path: str) -> str:
        self.lost.append(f"{path} is of type {type(value).__name__}, which is neither plain data nor a dataclass")
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
