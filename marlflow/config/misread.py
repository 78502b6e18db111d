"""Reject overrides that Hydra accepts with another meaning than intended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Override, QuotedString

from marlflow.config.kinds import kind_of

_CAST = re.compile(r"\bint\(")
_FRACTION = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|(?<![\w.])\d+[eE]-\d+")
# Hydra's parser recurses several Python frames per level, so deeper values could overflow the stack.
_DEEPEST = 32


def cast_problems(read: Override) -> Iterator[str]:
    """Yield casts that lose a fraction: Hydra reads `int(3.7)` as 3."""
    text = (read.input_line or "").partition("=")[2]
    if not _CAST.search(text) or isinstance(read.value(), str | QuotedString):
        return
    # Hydra truncates without a warning.
    fractions = [number for number in _FRACTION.findall(text) if not float(number).is_integer()]
    if fractions:
        yield f"{read.input_line} would cut {', '.join(fractions)} down to a whole number; write the one that is meant"


def depth_problem(override: str) -> str | None:
    """Return the error for values nested too deep for Hydra's recursive parser."""
    deepest = depth = 0
    for character in override:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    deepest = max(deepest, override.partition("=")[0].count("."))
    if deepest > _DEEPEST:
        return f"{override[:40]}... is nested {deepest} deep, and no setting is nested more than {_DEEPEST} deep"
    return None


def deletion_problem(key: str) -> str | None:
    """Return the error for `~key` of a section that every run has."""
    # Nested keys may be deleted, such as an argument of the environment.
    if "." in key:
        return None
    return f"~{key} takes away what every run has; give it the value that is meant, or leave it out for the default"


def merge_problem(line: str, key: str, current: Any, value: Any) -> str | None:
    """Return the error for `{...}` without a `_target_` in place of an object."""
    if not (isinstance(current, Mapping) and isinstance(value, Mapping)) or key == "env":
        return None
    # Hydra would merge the two, keeping the old class and its settings.
    if "_target_" not in current or "_target_" in value:
        return None
    parts = " ".join(_dotted(key, value))
    instead = f", or change what is there by {parts}" if parts else ""
    return f"{line} has no _target_: name the class that it is to be made from{instead}"


def _dotted(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, setting in value.items():
            yield from _dotted(f"{key}.{name}", setting)
    else:
        yield f"{key}={'null' if value is None else value}"


def kind_problem(key: str, current: Any, value: Any) -> str | None:
    """Return the error for an environment argument of another type than its default."""
    # Other settings are checked against annotations, which factories of environments seldom have.
    if not key.startswith("env.") or current is None or value is None or "???" in (current, value):
        return None
    expected, actual = kind_of(current), kind_of(value)
    return (
        None
        if None in (expected, actual) or expected == actual
        else f"{key} must be {expected}, such as {current!r}, not {str(value)!r}"
    )
