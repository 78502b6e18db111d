"""Check the type and range of every setting of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np

from marlflow.algorithms.algorithm import TorchAlgorithm
from marlflow.algorithms.part import Part
from marlflow.base.problems import Problem, ProblemKind
from marlflow.base.schedules import CosineDecay, Linear, PiecewiseConstant, Schedule
from marlflow.config.construct import LEFT, fit
from marlflow.config.experiment import Env, Experiment, Stop
from marlflow.config.ranges import INFINITY, RANGES, REMARKS, Range, name_problem, text_problem
from marlflow.config.signatures import hints_of
from marlflow.env.frames import raised
from marlflow.learner.optimizer import TorchOptimizer
from marlflow.observe.callback import Callback

# Fields whose contents are checked where they are used.
_OPAQUE = {(Env, "arguments"), (Env, "wrappers")}
# Fields that may also hold a user's function; other values in them are checked.
_OF_ANY_TYPE = {(Env, "factory"), (Experiment, "mapping")}
# Fields with another name in a configuration.
_WRITTEN_AS = {(Env, "factory"): "_target_"}

_LATE_AGENT_STEPS = 2**62
_ANY_NUMBER = Range(-INFINITY, INFINITY)


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
            yield from _BY_NAME[key](value_found, path)
            continue
        where = _joined(path, _WRITTEN_AS.get(key, field.name))
        problems: list[str] = []
        fitted = fit(value_found, Any if key in _OF_ANY_TYPE else hints.get(field.name, Any), where, problems)
        if not problems and is_dataclass(fitted) and isinstance(value_found, Mapping):
            problems.append(f"{where} must be a {type(fitted).__name__}, not {value_found!r}")
        yield from (Problem(problem, kind=ProblemKind.WRONG_TYPE) for problem in problems)
        if not problems and fitted is not LEFT:
            yield from _value_problems(value_found, where, range_of(type(value), field.name, field.default))


def any_wrong_type(problems: Iterable[Problem | str]) -> bool:
    """Return whether a value has a wrong type, so that other checks would fail."""
    return any(isinstance(problem, Problem) and problem.kind is ProblemKind.WRONG_TYPE for problem in problems)


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
        for field in fields(owner):
            value = getattr(owner, field.name)
            if isinstance(value, int | float) and (remark := REMARKS.get((field.name, float(value)))):
                yield f"{_joined(path, field.name)} is {value:g}: {remark}"
    stop = experiment.stop
    if stop.env_steps is None and stop.time_s is None:
        yield (
            "neither stop.env_steps nor stop.time_s is set: if the goals are never reached, this run does not end by "
            "itself"
        )


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
    # A setting may be called `at`, too.
    elif isinstance(value, Schedule) and callable(value.at):
        schedule: Any = value
        broken = list(setting_problems(schedule, path)) if is_dataclass(schedule) else []
        yield from broken or schedules_out_of_range(value, path, allowed)
    elif is_dataclass(value):
        yield from setting_problems(value, path)
    else:
        yield from _items_problems(value, path, allowed)


def _items_problems(values: Any, path: str, allowed: Range) -> Iterator[Problem | str]:
    if isinstance(values, Mapping):
        for key, entry in values.items():
            if problem := name_problem(str(key)) if path == "policies" else text_problem(str(key)):
                yield f"a name in {path} {problem}, not {str(key)!r:.60}"
            yield from _value_problems(entry, _joined(path, str(key)), allowed)
    elif isinstance(values, Sequence):
        for number, entry in enumerate(values):
            yield from _value_problems(entry, f"{path}[{number}]", allowed)


def _goal_problems(goals: Any, path: str) -> Iterator[Problem | str]:
    """Check `Stop.policies`, written as `{prey: {return_mean: 150}}`."""
    for name, goal in goals.items():
        yield from _value_problems(goal, f"{path}.policies.{name}.return_mean", RANGES["return_mean"])


def _torch_problems(settings: Any, path: str) -> Iterator[Problem | str]:
    for name, value in settings.items():
        yield from _value_problems(value, f"{path}.{name}", RANGES.get(name, _ANY_NUMBER))


# Fields whose items have their own ranges.
_BY_NAME: Mapping[tuple[type, str], Callable[[Any, str], Iterator[Problem | str]]] = {
    (Stop, "policies"): _goal_problems,
    (TorchOptimizer, "settings"): _torch_problems,
}


def range_of(owner: type, name: str, default: Any) -> Range:
    """Return the range of a field; for a user's class, one derived from its default."""
    for kind in owner.__mro__:
        if f"{kind.__name__}.{name}" in RANGES:
            return RANGES[f"{kind.__name__}.{name}"]
    # A `window` of a callback is not that of a league, nor the `beta` of a part that of an optimizer.
    if name in RANGES and not issubclass(owner, Callback | Part):
        return RANGES[name]
    if issubclass(owner, TorchAlgorithm) and type(default) is int:
        # Whole numbers of a user's algorithm are counts, at least 1 unless it says otherwise.
        return Range(int(name not in owner.non_negative_fields), 2**62)
    return _ANY_NUMBER if default is MISSING or default != INFINITY else Range(-INFINITY, INFINITY, infinite=True)


def _short(value: Any) -> str:
    if isinstance(value, int):
        return str(value) if abs(value) < 10**24 else "a whole number of more than 24 digits"
    return f"{value:g}"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
