"""Check the type and range of every setting of an experiment."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from marlflow.algorithms.algorithm import may_be_scheduled
from marlflow.algorithms.part import kind_of
from marlflow.base.errors import Problem, ProblemKind
from marlflow.base.ranges import INFINITY, Range, declared_range
from marlflow.base.schedules import CosineDecay, Linear, PiecewiseConstant, Schedule
from marlflow.config.construct import LEFT, fit, settings_of
from marlflow.config.experiment import Env, Experiment, Stop
from marlflow.config.folders import name_problem
from marlflow.config.target_nodes import hints_of, parameters_of
from marlflow.env.episode_location import raised
from marlflow.learner.optimizer import TORCH_SETTINGS, TorchOptimizer
from marlflow.observe.report import ChangeableSetting

# Fields whose contents are checked where they are used.
_OPAQUE = {(Env, "arguments"), (Env, "wrappers")}
# Fields that may also hold a user's function; other values in them are checked.
_OF_ANY_TYPE = {(Env, "factory"), (Experiment, "mapping")}
# Fields with another name in a configuration.
_WRITTEN_AS = {(Env, "factory"): "_target_"}

_LATE_AGENT_STEPS = 2**62
_ANY_NUMBER = Range(-INFINITY, INFINITY)
_ANY_NUMBER_OR_INFINITY = Range(-INFINITY, INFINITY, infinite=True)
_LONGEST_TEXT = 4_096
_CALLBACK = re.compile(r"(callbacks|log\.sinks)\.[^.]+")


def setting_problems(value: Any, path: str = "") -> Iterator[Problem | str]:
    """Yield a problem for each setting of the wrong type or out of range under a dataclass.

    `path` is its configuration path. Values that are not dataclasses are not checked.
    """
    kind: Callable[..., Any] = type(value)
    hints = hints_of(kind)
    for field in fields(value):
        key, value_found = (type(value), field.name), getattr(value, field.name)
        if key in _OPAQUE:
            continue
        if key in _BY_NAME:
            yield from _BY_NAME[key](value, path)
            continue
        where, hint = _joined(path, _WRITTEN_AS.get(key, field.name)), hints.get(field.name, Any)
        if isinstance(hint, type) and is_dataclass(hint) and not isinstance(value_found, hint):
            yield Problem(f"{where} is {value_found!r}, not {_call_of(hint)}", kind=ProblemKind.WRONG_TYPE)
            continue
        problems: list[str] = []
        fitted = fit(value_found, Any if key in _OF_ANY_TYPE else hint, where, problems)
        if not problems and is_dataclass(fitted) and isinstance(value_found, Mapping):
            problems.append(f"{where} must be a {type(fitted).__name__}, not {value_found!r}")
        yield from (Problem(problem, kind=ProblemKind.WRONG_TYPE) for problem in problems)
        if not problems and fitted is not LEFT:
            yield from _value_problems(value_found, where, range_of(kind, field.name))


def _call_of(kind: type) -> str:
    article, (first, *others) = "an" if kind.__name__[0] in "AEIOU" else "a", fields(kind)
    return f"{article} {kind.__name__}; write {kind.__name__}({first.name}=...{', ...' * bool(others)})"


def schedules_out_of_range(schedule: Schedule, path: str, allowed: Range) -> Iterator[str]:
    """Yield the values of a schedule that its setting may not have."""
    if isinstance(schedule, Linear | CosineDecay):
        values = {f"{path}.start": schedule.start, f"{path}.end": schedule.end}
    elif isinstance(schedule, PiecewiseConstant):
        values = {f"{path}.values[{number}]": value for number, value in enumerate(schedule.values)}
    else:
        # A user's schedule: only its first value and a very late one are checked.
        try:
            values = {f"{path}.at({when})": float(schedule.at(when)) for when in (0, _LATE_AGENT_STEPS)}
        except Exception as error:  # noqa: BLE001  a schedule of the user's own may raise anything
            yield f"{path}: {type(schedule).__name__}.at() gives no number: {raised(error)}"
            return
    for where, value in values.items():
        if problem := allowed.problem(value):
            yield f"{where} {problem}, not {value:g}"


def remarks(experiment: Experiment) -> Iterator[str]:
    """Yield a note on each setting that is allowed but unusual."""
    for path, owner in _owners(experiment, ""):
        kind: Callable[..., Any] = type(owner)
        for field in fields(owner):
            value, allowed = getattr(owner, field.name), range_of(kind, field.name)
            if allowed.low_means and isinstance(value, int | float) and value == allowed.low:
                yield f"{_joined(path, field.name)} is {value:g}: {allowed.low_means}"
    stop = experiment.stop
    if stop.env_steps is None and stop.time_s is None:
        yield (
            "neither stop.env_steps nor stop.time_s is set: if the goals are never reached, this run does not end by "
            "itself"
        )


def changeable_settings(algorithm: object) -> dict[str, ChangeableSetting]:
    """Return the numbers of an algorithm and its parts that may change while it learns, and follow no schedule.

    Settings of parts are named as their learner has them, such as `CostLimit.limit`.
    """
    found = {}
    parts = {f"{kind_of(part)}.": part for part in getattr(algorithm, "used_parts", {}).values()}
    for prefix, owner in {"": algorithm, **parts}.items():
        make: Callable[..., Any] = type(owner)
        for field in fields(owner) if is_dataclass(owner) else ():
            value = getattr(owner, field.name)
            if may_be_scheduled(field) and isinstance(value, int | float):
                low, high = range_of(make, field.name).ends
                found[f"{prefix}{field.name}"] = ChangeableSetting(value, low, high)
    return found


def _owners(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        yield path, value
        for field in fields(value):
            yield from _owners(getattr(value, field.name), _joined(path, field.name))
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _owners(entry, _joined(path, str(key)))


def _value_problems(value: Any, path: str, allowed: Range) -> Iterator[Problem | str]:
    # bool is a subclass of int, and has no range; a class is no value of its own.
    if isinstance(value, bool | type):
        return
    if isinstance(value, str):
        if problem := name_problem(value) if path == "name" else text_problem(value):
            yield f"{path} {problem}, not {value!r:.60}"
    elif isinstance(value, int | float | np.integer | np.floating):
        number = value if isinstance(value, int) else int(value) if isinstance(value, np.integer) else float(value)
        if problem := allowed.problem(number):
            # Nothing can be computed from a number that is not finite.
            kind = ProblemKind.REPORTED if abs(number) < INFINITY else ProblemKind.WRONG_TYPE
            yield Problem(f"{path} {problem}, not {_short(number)}", kind=kind)
    # A setting may be called `at`, too, and so may a method of a callback or sink.
    elif not _CALLBACK.fullmatch(path) and isinstance(value, Schedule) and callable(value.at):
        schedule: Any = value
        broken = list(setting_problems(schedule, path)) if is_dataclass(schedule) else []
        yield from broken or schedules_out_of_range(value, path, allowed)
    elif is_dataclass(value):
        yield from setting_problems(value, path)
    elif isinstance(value, Mapping | Sequence):
        yield from _items_problems(value, path, allowed)
    elif value is not None:
        yield from _argument_problems(value, path)


def _argument_problems(made: Any, path: str) -> Iterator[Problem | str]:
    """Check the arguments of an object that a configuration made, by the ranges in its constructor."""
    make: Callable[..., Any] = type(made)
    for name, value in (settings_of(made) or {}).items():
        if (allowed := range_of(make, name)) not in (_ANY_NUMBER, _ANY_NUMBER_OR_INFINITY):
            yield from _value_problems(value, _joined(path, name), allowed)


def _items_problems(values: Any, path: str, allowed: Range) -> Iterator[Problem | str]:
    if isinstance(values, Mapping):
        for key, entry in values.items():
            if problem := name_problem(str(key)) if path == "policies" else text_problem(str(key)):
                yield f"a name in {path} {problem}, not {str(key)!r:.60}"
            yield from _value_problems(entry, _joined(path, str(key)), allowed)
    else:
        for number, entry in enumerate(values):
            yield from _value_problems(entry, f"{path}[{number}]", allowed)


def _goal_problems(stop: Stop, path: str) -> Iterator[Problem | str]:
    """Check `Stop.policies`, written as `{prey: {return_mean: 150}}`."""
    allowed = range_of(Stop, "policies")
    for name, goal in stop.policies.items():
        yield from _value_problems(goal, f"{path}.policies.{name}.return_mean", allowed)


def _torch_problems(optimizer: TorchOptimizer, path: str) -> Iterator[Problem | str]:
    make = optimizer.make.func if isinstance(optimizer.make, functools.partial) else optimizer.make
    # A class of torch, or one of a user's that has its constructor.
    of_torch = str(getattr(make.__init__, "__module__", None)).startswith("torch.")
    hints = TORCH_SETTINGS if of_torch else hints_of(make)
    for name, value in optimizer.settings.items():
        yield from _value_problems(value, f"{path}.{name}", declared_range(hints.get(name)) or _ANY_NUMBER)


# Fields whose items have their own ranges.
_BY_NAME: Mapping[tuple[type, str], Callable[[Any, str], Iterator[Problem | str]]] = {
    (Stop, "policies"): _goal_problems,
    (TorchOptimizer, "settings"): _torch_problems,
}


@functools.lru_cache(maxsize=4096)
def range_of(make: Callable[..., Any], name: str) -> Range:
    """Return the range that a class, or the nearest of its bases, declares for its field or argument `name`.

    Without one, any number: infinity too, where it is the default.
    """
    declared = (declared_range(hints_of(kind).get(name)) for kind in getattr(make, "__mro__", (make,)))
    if (found := next((one for one in declared if one is not None), None)) is not None:
        return found
    parameter = parameters_of(make).get(name)
    return _ANY_NUMBER_OR_INFINITY if parameter is not None and parameter.default == INFINITY else _ANY_NUMBER


def text_problem(value: str) -> str | None:
    """Return what a text should be; None if it is valid."""
    if not value or len(value) > _LONGEST_TEXT or re.search(r"[\x00-\x1f\x7f]", value):
        return f"must be a text of 1 to {_LONGEST_TEXT:,} characters in one line"
    return None


def _short(value: Any) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < 10**24 else "a whole number of more than 24 digits"
    return f"{value:g}"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
