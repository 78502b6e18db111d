"""Name the types of plain data in error messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def kind_of(value: Any) -> str | None:
    """Name the type of a value for error messages; return None if it is not plain data."""
    kinds: Mapping[str, Any] = {
        "true or false": bool | np.bool_,
        "a number": int | float | np.integer | np.floating,
        "text": str,
        "a mapping {...}": Mapping,
        "a list [...]": list | tuple,
    }
    return next((kind for kind, types_of_it in kinds.items() if isinstance(value, types_of_it)), None)
