"""Overrides that Hydra takes, and takes for something else than was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Override, QuotedString

from marlflow.config.construct import kind_of

_CAST = re.compile(r"\bint\(")
_FRACTION = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|(?<![\w.])\d+[eE]-\d+")
_DEEPEST = 32


def cast_problems(read: Override) -> Iterator[str]:
    """`int(3.7)` is 3 to Hydra, without a word."""
    text = (read.input_line or "").partition("=")[2]
    if not _CAST.search(text) or isinstance(read.value(), str | QuotedString):
        return
    lost = [number for number in _FRACTION.findall(text) if not float(number).is_integer()]
    if lost:
        yield f"{read.input_line} would cut {', '.join(lost)} down to a whole number; write the one that is meant"


def depth_problem(override: str) -> str | None:
    """Why what is nested that deep is refused before it is read: each level takes the parser several of Python's."""
    deepest = depth = 0
    for character in override:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    deepest = max(deepest, override.partition("=")[0].count("."))
    if deepest > _DEEPEST:
        return f"{override[:40]}... is nested {deepest} deep, and no setting is nested more than {_DEEPEST} deep"
    return None


def deletion_problem(key: str) -> str | None:
    """Why `~key` is refused: what every run has would silently be what it is by default, or be missed by Hydra."""
    if "." in key:
        return None
    return f"~{key} takes away what every run has; give it the value that is meant, or leave it out for the default"


def merge_problem(line: str, key: str, present: Any, value: Any) -> str | None:
    """Why `{...}` without a class is refused where there is something of a class: Hydra would merge the two."""
    if not (isinstance(present, Mapping) and isinstance(value, Mapping)) or key == "env":
        return None
    if "_target_" not in present or "_target_" in value:
        return None
    parts = " ".join(f"{key}.{name}={one}" for name, one in value.items())
    return f"{line} has no _target_: name the class that it is to be made from, or change what is there by {parts}"


def kind_problem(key: str, present: Any, value: Any) -> str | None:
    """Why an argument of an environment cannot have a value of another kind than the one that is there."""
    if not key.startswith("env.") or present is None or value is None or "???" in (present, value):
        return None
    wanted, came = kind_of(present), kind_of(value)
    return (
        None
        if None in (wanted, came) or wanted == came
        else f"{key} must be {wanted}, such as {present!r}, not {str(value)!r}"
    )
