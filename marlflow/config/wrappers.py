"""Read the wrappers of an environment from a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marlflow.config.construct import LEFT, arguments_for, imported
from marlflow.config.renamed import KEYS, unknown_key
from marlflow.config.target_nodes import TARGET, target_node, without_positional
from marlflow.env.make import Wrapper


def wrappers_of(entries: Any, problems: list[str]) -> list[Wrapper]:
    """Read wrappers by name, `{stack: {_target_: ..., ...}}`, or a list of them, in their order."""
    if isinstance(entries, Mapping) and TARGET not in entries:
        # Overriding a setting under a wrapper's old name adds an entry without `_target_` next to the renamed wrapper.
        renamed = [
            name
            for name, entry in entries.items()
            if KEYS.get(name) in entries and not (isinstance(entry, Mapping) and TARGET in entry)
        ]
        problems += [unknown_key(f"env.wrappers.{name}", name, entries, "env.wrappers") for name in renamed]
        entries_by_path = [
            (f"env.wrappers.{name}", entry)
            for name, entry in entries.items()
            if entry is not None and name not in renamed
        ]
    elif isinstance(entries, list | tuple | None):
        entries_by_path = [(f"env.wrappers[{number}]", entry) for number, entry in enumerate(entries or ())]
    else:
        problems.append(
            f"env.wrappers must be wrappers by name, {{<name>: {{{TARGET}: ...}}, ...}}, or a list of them, "
            f"not {entries!r}"
        )
        return []
    return [wrapper for path, entry in entries_by_path if (wrapper := _wrapper(path, entry, problems)) is not None]


def _wrapper(path: str, entry: Any, problems: list[str]) -> Wrapper | None:
    if not isinstance(entry, Mapping) or TARGET not in entry:
        problems.append(f"{path} must be {{{TARGET}: package.module.function, ...}}, not {entry!r}")
        return None
    make = imported(entry[TARGET], f"{path}.{TARGET}", problems)
    if make is LEFT:
        return None
    node = target_node(entry, path, problems)
    rest = without_positional(node, path, "the first argument of a wrapper is the environment", problems)
    arguments = arguments_for(make, rest, path, problems, given=1)
    return None if arguments is None else Wrapper(entry[TARGET], make, arguments)
