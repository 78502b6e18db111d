"""Build objects from plain data, and report each value that does not fit.

The signature of a class or function is the schema, so each default is written once, and users' classes are checked like
marlflow's own. The settings of objects that do not show them as dataclasses do are remembered.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import types
import typing
import weakref
from bdb import BdbQuit
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, Final, Literal, Union

import numpy as np
import torch

from marlflow.base.errors import ConfigInvalid
from marlflow.base.public_names import moved_to
from marlflow.base.sentences import meant, nearest
from marlflow.config.renamed import unknown_key
from marlflow.config.target_nodes import (
    TARGET,
    UNSET,
    called,
    hints_of,
    parameters_of,
    positional_parameters,
    positional_slots,
    target_node,
    without_positional,
)
from marlflow.env.user_code import ImportFailed, failed_call, import_module, own_lines
from marlflow.env.user_code import attribute as attribute_of
from marlflow.learner.optimizer import TorchOptimizer

# Whole numbers up to here fit into a float.
_LARGEST_WHOLE = 10**300
# As YAML spells them, which Hydra leaves as texts in overrides.
_INFINITE = {".inf": math.inf, "-.inf": -math.inf}


class _Left:
    """Mark a value that did not fit, so that its default is used."""


LEFT: Final = _Left()


def construct(make: Callable[..., Any], values: Mapping[str, Any], path: str, problems: list[str]) -> Any:
    """Call `make` with `values`, converted to its annotations; return LEFT if that fails.

    Appends one sentence to `problems` for each error, at its path under `path`. Values that do not fit are left out, so
    that the others are checked too.
    """
    arguments = arguments_for(make, values, path, problems)
    return LEFT if arguments is None else _remembered(_made(make, (), arguments, path, problems), make, values)


def _remembered(made: Any, make: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    if isinstance(make, type) and not is_dataclass(make) and not isinstance(made, _Left):
        remember(made, {key: value for key, value in values.items() if key != TARGET})
    return made


def _made(
    make: Callable[..., Any], positional: Sequence[Any], named: Mapping[str, Any], path: str, problems: list[str]
) -> Any:
    try:
        return make(*positional, **named)
    except ConfigInvalid as error:
        problems.extend(f"{path}: {problem}" for problem in error.problems)
    except BdbQuit:
        raise
    # Code of a user may raise anything, and packages that lack something of the system call sys.exit().
    except (Exception, SystemExit) as error:  # noqa: BLE001
        problems.append(f"{path}: {failed_call(make, error, positional, named)}")
    return LEFT


def arguments_for(
    make: Callable[..., Any],
    values: Mapping[str, Any],
    path: str,
    problems: list[str],
    given: int = 0,
    is_partial: bool = False,
) -> dict[str, Any] | None:
    """Convert `values` to arguments of `make`; return None if a required one is missing, unless `is_partial`.

    The first `given` positional parameters are passed by the caller.
    """
    # For example, a wrapper gets the environment as its first argument, so the configuration must not.
    passed = positional_parameters(make)[:given]
    parameters = {name: p for name, p in parameters_of(make).items() if p not in passed}
    hints = hints_of(make)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named_parameters = {
        name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    arguments = {}
    # Keys are names, though YAML reads 1 as a number.
    values = {str(key): value for key, value in values.items()}
    for key, value in values.items():
        where = f"{path}.{key}" if path else key
        if key not in named_parameters and not takes_any:
            problems.append(unknown_key(where, key, named_parameters, called(make)))
            continue
        fitted = fit(value, hints.get(key, Any), where, problems)
        if not isinstance(fitted, _Left):
            arguments[key] = fitted
    if is_partial:
        return arguments
    missing = [name for name, p in named_parameters.items() if p.default is p.empty and name not in arguments]
    # A missing parameter whose misspelled key was already reported is not reported again.
    misspelt = {nearest(key, named_parameters) for key in values if key not in named_parameters}
    unreported = [name for name in missing if name not in values and name not in misspelt]
    problems.extend(f"{path}.{name} is missing: {called(make)} needs it" for name in unreported)
    return None if missing else arguments


def build(values: Mapping[str, Any], path: str, problems: list[str]) -> Any:
    """Instantiate the `_target_` of `values` with the other keys, as Hydra does; return LEFT if that fails."""
    node = target_node(values, path, problems)
    make = imported(node.target, f"{path}.{TARGET}", problems)
    if isinstance(make, _Left):
        return LEFT
    if isinstance(make, type) and issubclass(make, torch.optim.Optimizer):
        # Wrapped, because the learner passes the parameters and the learning rate later.
        settings = without_positional(node, path, "the first argument is the learner's parameters", problems)
        return construct(TorchOptimizer, {"make": make, "settings": settings}, path, problems)
    before = len(problems)
    slots = positional_slots(make, node.positional, node.settings, path, problems)
    positional = [fit(*slot, problems) for slot in slots]
    if len(problems) > before:
        return LEFT
    named = arguments_for(make, node.settings, path, problems, len(positional), node.is_partial)
    if named is None:
        return LEFT
    if node.is_partial:
        return functools.partial(make, *positional, **named)
    return _remembered(_made(make, positional, named, path, problems), make, values)


def imported(name: object, path: str, problems: list[str]) -> Any:
    """Import the callable at `package.module.name`; return LEFT if there is none."""
    if name == UNSET:
        problems.append(f"{path} is not set; give it an import path, package.module.name")
        return LEFT
    module_name, _, attribute = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    if not module_name or not all(part.isidentifier() for part in str(name).split(".")):
        problems.append(f"{path} must be an import path, package.module.name, not {name!r}")
        return LEFT
    try:
        module = import_module(module_name)
    except ImportFailed as error:
        problems.append(f"{path}: {name} cannot be imported: {error}{own_lines(error)}")
        return LEFT
    except ImportError as error:
        # Modules move between versions of marlflow; the public name stays.
        is_public = module_name.startswith("marlflow.") and attribute in importlib.import_module("marlflow").__all__
        remedy = f"; did you mean marlflow.{attribute}?" if is_public else moved_to(str(name))
        problems.append(f"{path}: {name} cannot be imported: {error}{remedy}")
        return LEFT
    try:
        value = attribute_of(module, attribute)
    except ImportFailed as error:
        problems.append(f"{path}: {name} cannot be imported: {error}{own_lines(error)}")
        return LEFT
    except ImportError as error:
        problems.append(f"{path}: {name} cannot be imported: {error}{_question(attribute, _public(module))}")
        return LEFT
    if callable(value):
        return value
    public = _public(module)
    kind = f"no {attribute!r}" if value is None else f"no class or function {attribute!r}"
    problems.append(f"{path}: module {module_name} has {kind}{moved_to(str(name)) or meant(attribute, public)}")
    return LEFT


def _public(module: types.ModuleType) -> list[str]:
    name = module.__name__
    origins = {key: getattr(value, "__module__", None) or "" for key, value in vars(module).items() if callable(value)}
    own = [key for key, source in origins.items() if f"{source}.".startswith(f"{name}.") and not key.startswith("_")]
    # A package may load its names when they are first asked for.
    return list(dict.fromkeys([*own, *vars(module).get("__all__", ())]))


def fit(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    """Convert `value` to the annotation `hint` where that is lossless; return LEFT if it does not fit."""
    if isinstance(value, str) and value == UNSET:
        problems.append(f"{path} is not set; give it a value")
        return LEFT
    if isinstance(value, Mapping) and TARGET in value:
        value = build(value, path, problems)
        if isinstance(value, _Left):
            return LEFT
    fitter = _fitter(hint)
    return fitter(value, hint, path, problems)


_Fitter = Callable[[Any, Any, str, list[str]], Any]


def _fitter(hint: Any) -> _Fitter:
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _fit_annotated
    if origin in (Union, types.UnionType):
        return _fit_union
    if origin is Literal:
        return _fit_literal
    if hint is abc.Callable or origin is abc.Callable:
        return _fit_callable
    if isinstance(origin, type) and issubclass(origin, abc.Mapping):
        return _fit_mapping
    if isinstance(origin, type) and issubclass(origin, abc.Sequence):
        return _fit_sequence
    return _fit_class if isinstance(hint, type) and hint is not Any else _fit_anything


def _fit_anything(value: Any, hint: Any, path: str, problems: list[str]) -> Any:  # noqa: ARG001
    return value


def _fit_annotated(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    return fit(value, hint.__origin__, path, problems)


def _fit_union(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    # str comes last, because a text may also be the import path or name that another member takes.
    members = sorted(typing.get_args(hint), key=lambda member: member is str)
    explanations: list[list[str]] = []
    for member in members:
        member_problems: list[str] = []
        fitted = fit(value, member, path, member_problems)
        if not member_problems:
            return fitted
        # A member that explains more than its type came closest; if it is the only one, its errors are the useful ones.
        if member_problems != [_misfitting(value, member, path)]:
            explanations.append(member_problems)
    problems.extend(explanations[0] if len(explanations) == 1 else [_misfitting(value, hint, path)])
    return LEFT


def _fit_literal(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    allowed = typing.get_args(hint)
    if value in allowed:
        return value
    names = [str(option) for option in allowed]
    problems.append(_misfitting(value, hint, path) + _question(value, names))
    return LEFT


def _fit_callable(value: Any, hint: Any, path: str, problems: list[str]) -> Any:  # noqa: ARG001
    if callable(value):
        return value
    return imported(value, path, problems)


def _fit_mapping(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        return _misfit(value, hint, path, problems)
    _, item = typing.get_args(hint)
    fitted = {str(key): fit(entry, item, f"{path}.{key}", problems) for key, entry in value.items()}
    return {key: entry for key, entry in fitted.items() if not isinstance(entry, _Left)}


def _fit_sequence(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _misfit(value, hint, path, problems)
    item = (typing.get_args(hint) or (Any,))[0]
    fitted = [fit(entry, item, f"{path}[{number}]", problems) for number, entry in enumerate(value)]
    return tuple(entry for entry in fitted if not isinstance(entry, _Left))


def _fit_class(value: Any, hint: type, path: str, problems: list[str]) -> Any:
    if is_dataclass(hint) and isinstance(value, Mapping):
        return construct(hint, value, path, problems)
    # bool is a subclass of int, and is no number in a configuration.
    if hint in (int, float) and isinstance(value, int | float | np.integer | np.floating) and type(value) is not bool:
        return _fit_number(value, hint, path, problems)
    if hint is float and isinstance(value, str) and value in _INFINITE:
        return _INFINITE[value]
    if hint in (int, float, bool, str, types.NoneType):
        return value if type(value) is hint else _misfit(value, hint, path, problems)
    if _is_protocol(hint):
        return _fit_protocol(value, hint, path, problems)
    if isinstance(value, Mapping) and not issubclass(hint, Mapping):
        return _without_target(path, problems)
    if isinstance(value, hint):
        return value
    return _misfit(value, hint, path, problems)


def _fit_number(value: float | np.integer[Any] | np.floating[Any], hint: type, path: str, problems: list[str]) -> Any:
    if isinstance(value, int | np.integer):
        if abs(int(value)) > _LARGEST_WHOLE:
            problems.append(f"{path} must be a number of at most {_LARGEST_WHOLE:g}, not one of more digits")
            return LEFT
        return hint(value)
    if hint is float or float(value).is_integer():
        return hint(value)
    return _misfit(value, hint, path, problems)


def _fit_protocol(value: Any, hint: type, path: str, problems: list[str]) -> Any:
    if "__call__" in vars(hint) and not callable(value):
        return _misfit(value, hint, path, problems)
    if isinstance(value, type) and "__call__" not in vars(hint):
        # It has the methods, but no object to call them on.
        is_torchs = issubclass(value, torch.optim.Optimizer)
        remedy = f"write mf.TorchOptimizer({value.__name__})" if is_torchs else f"write {value.__name__}(...)"
        problems.append(f"{path}: the class {value.__name__} is no {hint.__name__}; {remedy}")
        return LEFT
    lacking = sorted(name for name in _protocol_members(hint) if not hasattr(value, name))
    if not lacking:
        return value
    if isinstance(value, Mapping):
        return _without_target(path, problems)
    if isinstance(value, str | int | float | types.NoneType):
        # For plain data, the names of missing methods would be no help.
        return _misfit(value, hint, path, problems)
    problems.append(f"{path}: {type(value).__name__} is no {hint.__name__}: it has no {', '.join(lacking)}")
    return LEFT


def _without_target(path: str, problems: list[str]) -> Any:
    problems.append(f"{path} has no {TARGET}: it must name the class to make it from, package.module.Class")
    return LEFT


def _misfit(value: Any, hint: Any, path: str, problems: list[str]) -> Any:
    problems.append(_misfitting(value, hint, path))
    return LEFT


def _misfitting(value: Any, hint: Any, path: str) -> str:
    of_class = f"; write {value.__name__}(...)" if isinstance(value, type) else ""
    return f"{path} must be {described(hint)}, not {value!r}{of_class}"


_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    types.NoneType: "null",
}


def described(hint: Any) -> str:
    """Describe an annotation for error messages."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return described(hint.__origin__)
    if origin in (Union, types.UnionType):
        return " or ".join(described(member) for member in typing.get_args(hint))
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in typing.get_args(hint))
    if isinstance(origin, type) and issubclass(origin, abc.Mapping):
        return "a mapping {...}"
    if isinstance(origin, type) and issubclass(origin, abc.Sequence):
        return "a list [...]"
    if is_dataclass(hint):
        return f"a mapping {{{', '.join(parameters_of(hint))}}}"  # type: ignore[arg-type]
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _question(value: object, names: Sequence[str]) -> str:
    text = meant(str(value), names)
    return text if "did you mean" in text else ""


def _is_protocol(hint: type) -> bool:
    return bool(getattr(hint, "_is_protocol", False))


def _protocol_members(hint: type) -> set[str]:
    return {name for name in {*vars(hint), *vars(hint).get("__annotations__", {})} if not name.startswith("_")}


# By identity, because a class of a user's may define equality, or none.
_SETTINGS: dict[int, tuple[weakref.ref[Any], Mapping[str, Any]]] = {}


def remember(made: Any, settings: Mapping[str, Any]) -> None:
    """Remember that the configuration `settings` made this object."""
    number = id(made)
    try:
        reference = weakref.ref(made, lambda _: _SETTINGS.pop(number, None))
    except TypeError:
        return  # a class with slots
    _SETTINGS[number] = reference, dict(settings)


def settings_of(value: Any) -> Mapping[str, Any] | None:
    """Return the settings that made an object, {} if it has no attributes, or None if they are not known."""
    reference, settings = _SETTINGS.get(id(value), (None, None))
    if reference is not None and reference() is value:
        return settings
    try:
        takes_any = bool(inspect.signature(type(value)).parameters)
    except (TypeError, ValueError):
        return None
    return None if takes_any or getattr(value, "__dict__", True) else {}
