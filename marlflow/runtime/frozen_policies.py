"""Frozen policies in checkpoints: one file each, written once and shared by later checkpoints."""

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
    """Return an entry's file name."""
    # An entry id is used only once in a run, so its file never changes.
    return f"{_PREFIX}{entry}"


def frozen_names(checkpoint: Checkpoint) -> list[str]:
    """Return the ids of a checkpoint's frozen entries."""
    return [name.removeprefix(_PREFIX) for name in checkpoint.names if name.startswith(_PREFIX)]


def frozen_bytes(frozen: FrozenPolicy, driver: DriverPlace) -> bytes:
    """Serialize an entry; raise ActorLost if its weights were lost."""
    return to_bytes(
        {
            "policy": frozen.policy,
            "version": frozen.weights.version,
            "scheduled": dict(frozen.scheduled),
            "flat": driver.fetch(frozen.weights.flat),
        }
    )


def frozen_entries(checkpoint: Checkpoint, driver: DriverPlace) -> dict[str, FrozenPolicy]:
    """Return a checkpoint's frozen entries; raise CheckpointUnusable if one is malformed."""
    files = {name: frozen_file(name) for name in frozen_names(checkpoint)}
    return {name: _read(file, from_bytes(checkpoint.read(file)), driver) for name, file in files.items()}


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
