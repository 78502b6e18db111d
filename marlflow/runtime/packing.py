"""Rows, or gradients, that wait on the driver as bytes, so that a checkpoint has them."""

from __future__ import annotations

import sys
from dataclasses import fields

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.items import Gradients
from marlflow.base.serialization import MALFORMED, Tree, from_bytes, to_bytes
from marlflow.base.train_batch import TrainBatch


def pack_batch(batch: TrainBatch | Gradients) -> bytes:
    """A batch or gradients as bytes; raises TypeError for anything else, and for a batch that is no tree."""
    if isinstance(batch, Gradients):
        tree: Tree = {field.name: getattr(batch, field.name) for field in fields(batch)} | {"loss": dict(batch.loss)}
        return to_bytes({"kind": Gradients.__name__, "of": tree})
    if not isinstance(batch, TrainBatch):
        raise TypeError(f"expected a TrainBatch or Gradients to wait on the driver, not {type(batch).__name__}")
    kind = type(batch)
    return to_bytes({"kind": f"{kind.__module__}.{kind.__qualname__}", "of": batch.to_tree()})


def unpack_batch(packed: bytes | memoryview) -> TrainBatch | Gradients:
    """The batch, or gradients, that `pack_batch` was given; raises CheckpointUnusable for anything else."""
    tree = from_bytes(packed)
    try:
        kind = Gradients if tree["kind"] == Gradients.__name__ else _batch_class(tree["kind"])
        return kind(**tree["of"]) if kind is Gradients else kind.from_tree(tree["of"])  # type: ignore[union-attr]
    except MALFORMED as error:
        what = tree.get("kind") if isinstance(tree, dict) else None
        raise CheckpointUnusable([f"rows or gradients that waited ({what!s:.80}) are not whole: {error}"]) from error


def _batch_class(name: str) -> type[TrainBatch]:
    """The class of this name, if its module is imported: what is in a checkpoint has nothing imported."""
    module, _, kind = name.rpartition(".")
    found = getattr(sys.modules.get(module), kind, None)
    if not (isinstance(found, type) and issubclass(found, TrainBatch)):
        raise LookupError("there is no TrainBatch of this name in the modules of this run")
    return found
