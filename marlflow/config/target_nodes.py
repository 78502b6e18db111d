"""Read a node with a `_target_`: Hydra's own keys of it, and the signature of what it calls, which is its schema.

The keys are `_args_`, `_partial_`, `_recursive_` and `_convert_`.

Source: hydra.utils.instantiate (https://hydra.cc/docs/1.3/advanced/instantiate_objects/overview/).
"""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from typing import Any, Final

TARGET: Final = "_target_"
ARGS: Final = "_args_"
PARTIAL: Final = "_partial_"
RECURSIVE: Final = "_recursive_"
CONVERT: Final = "_convert_"
UNSET: Final = "???"
"""The value of a key that has to be given."""
IMPORT_PATH: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
ENV_KEYS: Final = ("num_envs", "wrappers", "step_timeout_s", "batched")
"""The keys of the node `env` that are not arguments of its factory."""
KEYWORDS: Final = "_kwargs_"
"""Arguments of its factory that have the name of a key of marlflow, such as `num_envs`."""


@dataclass(frozen=True, slots=True)
class TargetNode:
    """Hold what a node calls: `target` with `positional` arguments and named `settings`; later if `is_partial`."""

    target: Any
    positional: Sequence[Any]
    settings: Mapping[str, Any]
    is_partial: bool


def target_node(values: Mapping[str, Any], path: str, problems: list[str]) -> TargetNode:
    """Split the mapping at `path`; append a problem for each key of Hydra that has another meaning there or none."""
    positional, is_partial = values.get(ARGS, ()), values.get(PARTIAL, False)
    if not isinstance(positional, list | tuple):
        problems.append(f"{path}.{ARGS} must be a list of positional arguments, not {positional!r}")
        positional = ()
    if not isinstance(is_partial, bool):
        problems.append(f"{path}.{PARTIAL} must be true or false, not {is_partial!r}")
        is_partial = False
    if values.get(RECURSIVE, True) is not True:
        problems.append(
            f"{path}.{RECURSIVE} must be true: a {TARGET} inside another is always made first; leave the key out, or "
            f"set {PARTIAL}: true inside to have it called later"
        )
    if values.get(CONVERT, "all") != "all":
        problems.append(f"{path}.{CONVERT} must be all: values are plain lists and mappings; leave the key out")
    settings = {key: value for key, value in values.items() if key not in _KEYS}
    return TargetNode(values[TARGET], positional, settings, is_partial)


_KEYS: Final = (TARGET, ARGS, PARTIAL, RECURSIVE, CONVERT)


def without_positional(node: TargetNode, path: str, instead: str, problems: list[str]) -> Mapping[str, Any]:
    """Return the settings of a node whose function marlflow calls with arguments of its own first."""
    if node.positional:
        problems.append(f"{path}.{ARGS}: {instead}, so name the others by keys of their own")
    return node.settings


def called(make: Callable[..., Any]) -> str:
    """Return the name of a class or function for error messages."""
    return getattr(make, "__name__", type(make).__name__)


@functools.lru_cache(maxsize=512)
def parameters_of(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a callable; any, if it has no signature."""
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):
        # A builtin without a signature checks its arguments itself.
        kinds = {"entries": inspect.Parameter.VAR_POSITIONAL, "values": inspect.Parameter.VAR_KEYWORD}
        return {name: inspect.Parameter(name, kind) for name, kind in kinds.items()}


def positional_parameters(make: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that can be given in order."""
    return [p for p in parameters_of(make).values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def positional_slots(
    make: Callable[..., Any], values: Sequence[Any], named: Mapping[str, Any], path: str, problems: list[str]
) -> list[tuple[Any, Any, str]]:
    """Return each value of `_args_` with the annotation of its parameter and its path; append what cannot be passed."""
    taken, hints = positional_parameters(make), hints_of(make)
    is_open = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters_of(make).values())
    if len(values) > len(taken) and not is_open:
        problems.append(f"{path}.{ARGS} has {len(values)} entries, but {called(make)} takes at most {len(taken)}")
        return []
    twice = [parameter.name for parameter in taken[: len(values)] if parameter.name in named]
    problems.extend(f"{path}.{name} is given twice: {ARGS} has it already" for name in twice)
    kinds = [hints.get(parameter.name, Any) for parameter in taken]
    kinds += [Any] * (len(values) - len(taken))
    return [(value, kinds[number], f"{path}.{ARGS}[{number}]") for number, value in enumerate(values)]


@functools.lru_cache(maxsize=512)
def hints_of(make: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the annotations of a callable's parameters, with their ranges, except those that cannot be resolved."""
    # The annotations of a dataclass are its fields'; of another class, its constructor's.
    source: Any = make.__init__ if isinstance(make, type) and not is_dataclass(make) else make  # type: ignore[misc]
    try:
        return typing.get_type_hints(source, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # Names imported only under TYPE_CHECKING do not exist at run time; those of other annotations do.
        hints: dict[str, Any] = {}
        for owner in reversed(source.__mro__) if isinstance(source, type) else (source,):
            for name, annotation in getattr(owner, "__annotations__", {}).items():
                hints.pop(name, None)
                with suppress(NameError, TypeError, AttributeError):
                    hints |= _hint_of(owner, name, annotation)
        return hints


def _hint_of(owner: Any, name: str, annotation: Any) -> Mapping[str, Any]:
    """Resolve one annotation of a class or a function."""
    alone = type(owner.__name__, (), {"__annotations__": {name: annotation}, "__module__": owner.__module__})
    return typing.get_type_hints(alone, getattr(inspect.unwrap(owner), "__globals__", None), include_extras=True)
