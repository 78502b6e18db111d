"""Serialization of batches and gradients queued on the driver."""

from __future__ import annotations

import sys
from dataclasses import fields

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import MALFORMED, Tree, from_bytes, to_bytes
from marlflow.batches.batch import TrainBatch
from marlflow.batches.items import Gradients


def pack_batch(batch: TrainBatch | Gradients) -> bytes:
    """Serialize; raises TypeError for other types."""
    if isinstance(batch, Gradients):
        tree: Tree = {field.name: getattr(batch, field.name) for field in fields(batch)} | {"loss": dict(batch.loss)}
        return to_bytes({"kind": Gradients.__name__, "of": tree})
    if not isinstance(batch, TrainBatch):
        raise TypeError(f"expected a TrainBatch or Gradients to wait on the driver, not {type(batch).__name__}")
    kind = type(batch)
    return to_bytes({"kind": f"{kind.__module__}.{kind.__qualname__}", "of": batch.to_tree()})


def unpack_batch(packed: bytes | memoryview) -> TrainBatch | Gradients:
    """Deserialize; raises CheckpointUnusable for malformed bytes."""
    tree = from_bytes(packed)
    try:
        kind = Gradients if tree["kind"] == Gradients.__name__ else _batch_class(tree["kind"])
        return kind(**tree["of"]) if kind is Gradients else kind.from_tree(tree["of"])  # type: ignore[union-attr]
    except MALFORMED as error:
        named = tree.get("kind") if isinstance(tree, dict) else None
        raise CheckpointUnusable([f"rows or gradients that waited ({named!s:.80}) are not whole: {error}"]) from error


def _batch_class(name: str) -> type[TrainBatch]:
    # Only modules that are already imported: a name in a checkpoint must not execute code.
    module, _, class_name = name.rpartition(".")
    batch_class = getattr(sys.modules.get(module), class_name, None)
    if not (isinstance(batch_class, type) and issubclass(batch_class, TrainBatch)):
        raise LookupError("there is no TrainBatch of this name in the modules of this run")
    return batch_class
