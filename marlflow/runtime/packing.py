"""Rows that wait on the driver as bytes, so that they can be kept and come back."""

from __future__ import annotations

from collections.abc import Mapping

from marlflow.base.batch import Batch, EstimatedBatch
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.kept import from_bytes, to_bytes

_KINDS: Mapping[str, type[Batch]] = {kind.__name__: kind for kind in (Batch, EstimatedBatch)}


def pack_batch(batch: Batch) -> bytes:
    """A batch's columns and segments; raises TypeError for rows of another kind, which no queue holds."""
    kind = type(batch).__name__
    if kind not in _KINDS:
        raise TypeError(f"rows that wait are of {' or '.join(_KINDS)}, not {kind}: they cannot be kept")
    return to_bytes({"kind": kind, "columns": dict(batch.columns), "segments": dict(batch.segments)})


def unpack_batch(packed: bytes | memoryview) -> Batch:
    """The batch that `pack_batch` was given; raises CheckpointUnusable if it is none."""
    tree = from_bytes(packed)
    if not isinstance(tree, dict) or tree.get("kind") not in _KINDS:
        raise CheckpointUnusable(["rows that waited are not of a batch; the file is of something else"])
    return _KINDS[tree["kind"]](tree["columns"], tree["segments"])
