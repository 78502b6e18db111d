"""Read the arguments of an environment's factory, which are mixed with marlflow's own keys under `env`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from marlflow.config.renamed import KEYS, unknown_key
from marlflow.config.target_nodes import ARGS, ENV_KEYS, KEYWORDS, PARTIAL, target_node
from marlflow.env.make import import_factory
from marlflow.env.simulators import pettingzoo_registry


def environment_arguments(factory: str, values: Mapping[str, Any], problems: list[str]) -> dict[str, Any] | None:
    """Return the arguments of the factory by name, from all keys of `env`; None if one has no value yet."""
    node = target_node(values, "env", problems)
    if node.is_partial:
        problems.append(f"env.{PARTIAL} must be false: marlflow calls the factory once for each environment")
    # Keys are names, though YAML reads 1 as a number.
    arguments = {str(key): value for key, value in node.settings.items() if key not in (KEYWORDS, *ENV_KEYS)}
    known = _parameters_of(factory, arguments)
    for key in list(arguments):
        # A factory with **kwargs takes any key, but a renamed key of marlflow is never meant for it.
        if (known is not None and key not in known) or (known is None and key in KEYS):
            problems.append(unknown_key(f"env.{key}", key, [*(known or ()), *ENV_KEYS], factory))
            del arguments[key]
    arguments = _with_positional(node.positional, arguments, known, factory, problems)
    arguments = _with_keywords(node.settings.get(KEYWORDS), arguments, known, factory, problems)
    unset = [key for key, value in arguments.items() if value == "???"]
    problems.extend(f"env.{key} is not set; give it a value" for key in unset[:1])
    return None if unset else arguments


def _with_positional(
    values: Any, arguments: dict[str, Any], known: list[str] | None, factory: str, problems: list[str]
) -> dict[str, Any]:
    # By name from here on, because arguments are compared between runs.
    if values and known is None:
        problems.append(f"env.{ARGS}: the order of the arguments of {factory} is not known, so name them")
    elif len(values) > len(known or ()):
        problems.append(f"env.{ARGS} has {len(values)} entries, but {factory} takes at most {len(known or ())}")
    named = dict(zip(known or (), values, strict=False))
    problems.extend(f"env.{key} is given twice: env.{ARGS} has it already" for key in named.keys() & arguments.keys())
    return {**named, **arguments}


def _with_keywords(
    values: Any, arguments: dict[str, Any], known: list[str] | None, factory: str, problems: list[str]
) -> dict[str, Any]:
    if values is not None and not isinstance(values, Mapping):
        problems.append(f"env.{KEYWORDS} must be arguments by name, {{<name>: <value>}}, not {values!r}")
        return arguments
    given = {str(key): value for key, value in (values or {}).items()}
    for key in list(given):
        if key in arguments:
            problems.append(f"env.{KEYWORDS}.{key} is given twice: env.{key} has it already")
        elif known is not None and key not in known:
            problems.append(unknown_key(f"env.{KEYWORDS}.{key}", key, known, factory))
            del given[key]
    return {**given, **arguments}


def _parameters_of(factory: str, arguments: Mapping[str, Any]) -> list[str] | None:
    """Return a factory's parameter names; None if it takes any or cannot be imported."""
    try:
        if factory == pettingzoo_registry.TARGET:
            taken = pettingzoo_registry.parameters(arguments)
            return None if taken is None else list(taken)
        parameters = inspect.signature(import_factory(factory)).parameters.values()
    except Exception:  # noqa: BLE001  (importing runs code of the user's; `ready` imports it again and says what is wrong)
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return [parameter.name for parameter in parameters]
