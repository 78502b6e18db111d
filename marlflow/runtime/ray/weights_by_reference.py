"""Weights as workers with an inference actor receive them: by reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray

from marlflow.base.arrays import Array
from marlflow.batches.items import Weights


@dataclass(frozen=True, slots=True)
class ByReference:
    """Weights as sent to workers with an inference actor: a version and an object reference."""

    version: int
    flat: list[Any]
    """One object reference; Ray does not fetch references nested in a list."""


def by_reference(weights: Mapping[str, Weights]) -> dict[str, Weights]:
    """Replace weights by references that workers do not fetch."""
    return {name: Weights(new.version, ByReference(new.version, [new.flat])) for name, new in weights.items()}


def fetch_weights(flat: Any) -> Array:
    """Return published weights as an array, fetching a reference."""
    value = flat.flat[0] if isinstance(flat, ByReference) else flat
    array: Array = ray.get(value) if isinstance(value, ray.ObjectRef) else value
    return array
