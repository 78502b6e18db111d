"""The numbers of a user's objects: a traced program has them as constants, so they must stay as they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def attributes_of(keeper: Any) -> Mapping[str, Any]:
    """Return an object's own attributes by name; none of one without a `__dict__`."""
    found: Mapping[str, Any] = getattr(keeper, "__dict__", {})
    return found


def numbers_of(keeper: Any) -> dict[str, Any]:
    """Return the attributes of an object that are numbers or texts, by name; none of torch's own modules."""
    # A module's `training` changes while it acts.
    attributes = {} if type(keeper).__module__.startswith("torch.") else attributes_of(keeper)
    return {
        name: value
        for name, value in attributes.items()
        if isinstance(value, bool | int | float | str | np.number) and name != "training"
    }


def changed_number(keeper: Any, before: Mapping[str, Any]) -> str | None:
    """Return the name of a number that is not as `before` any more, if there is one."""
    attributes = attributes_of(keeper)
    for name, value in before.items():
        now = attributes.get(name, value)
        if now is not value and now != value:
            return name
    return None
