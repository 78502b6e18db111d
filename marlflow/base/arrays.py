"""The type of arrays in annotations."""

from __future__ import annotations

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""An array of NumPy; the docstring of a function gives its shape and dtype."""
