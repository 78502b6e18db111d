"""Frozen entries of the table of weights in checkpoints: a file for each, written once and shared from then on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.items import Weights
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.runtime.checkpoints import Checkpoint
from marlflow.runtime.relocation import DriverPlace
from marlflow.sampling.protocol import FrozenPolicy

_PREFIX = "frozen."


def frozen_file(entry: str) -> str:
    """The name of an entry's file; ids are used once in a run, so it never changes."""
    return f"{_PREFIX}{entry}"


def frozen_bytes(kept: FrozenPolicy, driver: DriverPlace) -> bytes:
    """An entry as bytes; `driver` opens its weights. Raises ActorLost if they are lost with their machine."""
    return to_bytes(
        {
            "policy": kept.policy,
            "version": kept.weights.version,
            "scheduled": dict(kept.scheduled),
            "flat": driver.fetch(kept.weights.flat),
        }
    )


def frozen_entries(checkpoint: Checkpoint, driver: DriverPlace) -> dict[str, FrozenPolicy]:
    """The frozen entries of a checkpoint; raises CheckpointUnusable if one is not of the shape that is written."""
    names = [name for name in checkpoint.names if name.startswith(_PREFIX)]
    return {name.removeprefix(_PREFIX): _read(name, from_bytes(checkpoint.read(name)), driver) for name in names}


def _read(name: str, tree: Mapping[str, object], driver: DriverPlace) -> FrozenPolicy:
    match tree:
        case {
            "policy": str(policy),
            "version": int(version),
            "scheduled": dict(scheduled),
            "flat": np.ndarray() as flat,
        }:
            return FrozenPolicy(policy, Weights(version, driver.put(flat)), scheduled)
    raise CheckpointUnusable([f"{name} has no policy, version, scheduled values and parameters"])
