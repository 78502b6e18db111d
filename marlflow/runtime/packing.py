"""Rows, or gradients, that wait on the driver as bytes, so that they can be kept and come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from marlflow.base.batch import Batch, EstimatedBatch
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.items import Gradients
from marlflow.base.kept import Tree, from_bytes, to_bytes
from marlflow.learn.adaptation import AdaptedBatch

_KINDS: Mapping[str, type[Batch]] = {kind.__name__: kind for kind in (Batch, EstimatedBatch, AdaptedBatch)}


def pack_batch(batch: Batch | Gradients) -> bytes:
    """What a batch or gradients have; raises TypeError for rows of another kind, which no queue holds."""
    if isinstance(batch, Gradients):
        found: dict[str, Tree] = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return to_bytes({"kind": Gradients.__name__, **found, "loss": dict(batch.loss)})
    kind = type(batch).__name__
    if kind not in _KINDS:
        raise TypeError(f"what waits is of {', '.join(_KINDS)} or Gradients, not {kind}: they cannot be kept")
    return to_bytes({"kind": kind, "columns": dict(batch.columns), "segments": dict(batch.segments)})


def unpack_batch(packed: bytes | memoryview) -> Batch | Gradients:
    """The batch, or gradients, that `pack_batch` was given; raises CheckpointUnusable if it is none."""
    tree = from_bytes(packed)
    if isinstance(tree, dict) and tree.get("kind") == Gradients.__name__:
        try:
            return Gradients(**{name: value for name, value in tree.items() if name != "kind"})
        except TypeError as error:
            raise CheckpointUnusable([f"gradients that waited are not whole: {error}"]) from error
    if not isinstance(tree, dict) or tree.get("kind") not in _KINDS:
        raise CheckpointUnusable(["rows that waited are not of a batch; the file is of something else"])
    return _KINDS[tree["kind"]](tree["columns"], tree["segments"])
