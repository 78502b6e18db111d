"""Remember the settings from which objects were built, for classes that do not show them as dataclasses do."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping
from typing import Any

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
