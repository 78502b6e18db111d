"""Frozen policies in files: one each, written once and shared by checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import to_bytes
from marlflow.batches.items import Weights
from marlflow.runs.checkpoint_format import Checkpoint
from marlflow.runs.saved_runs import FROZEN, frozen_names
from marlflow.sampling.protocol import FrozenPolicy


def frozen_file(entry: str) -> str:
    """Return an entry's file name."""
    # An entry id is used only once in a run, so its file never changes.
    return f"{FROZEN}{entry}"


def frozen_bytes(frozen: FrozenPolicy, fetch: Callable[[Any], Any]) -> bytes:
    """Serialize an entry; raise ActorLost if its weights were lost."""
    return to_bytes(
        {
            "policy": frozen.policy,
            "version": frozen.weights.version,
            "scheduled": dict(frozen.scheduled),
            "flat": fetch(frozen.weights.flat),
        }
    )


def frozen_from(entry: str, tree: Mapping[str, object]) -> FrozenPolicy:
    """Return the entry that `frozen_bytes` serialized; raise CheckpointUnusable if it is malformed."""
    match tree:
        case {
            "policy": str(policy),
            "version": int(version),
            "scheduled": dict(scheduled),
            "flat": np.ndarray() as flat,
        }:
            return FrozenPolicy(policy, Weights(version, flat), scheduled)
    raise CheckpointUnusable([f"{frozen_file(entry)} has no policy, version, scheduled values and parameters"])


def entries_in(checkpoint: Checkpoint) -> dict[str, str]:
    """Return a checkpoint's frozen entries, each with the name of its file."""
    return {name: frozen_file(name) for name in frozen_names(checkpoint)}
