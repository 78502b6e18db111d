"""Serialization of items that wait in a plan's queues; their rows stay packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from marlflow.base.errors import CheckpointFailed
from marlflow.base.serialization import Tree
from marlflow.batches.items import Fragment, Inserted, JointFragment, Packed, Update

_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in (Fragment, JointFragment, Packed, Inserted, Update)}


class QueuedItems:
    """Converts items to trees and back; `payloads` has the rows of all items in order."""

    def __init__(self, payloads: Sequence[Any] = ()) -> None:
        self.payloads = list(payloads)

    def to_tree(self, item: Any) -> Tree:
        """Return an item's tree; raise CheckpointFailed for a user's own type."""
        kind = type(item).__name__
        if _KINDS.get(kind) is not type(item):
            raise CheckpointFailed(f"{item!r} waits in the plan, and only {', '.join(_KINDS)} can be kept")
        tree = {field.name: getattr(item, field.name) for field in fields(item)}
        # The tree has indices of payloads, because payloads are serialized where their rows are: by the runtime.
        if "payloads" in tree:
            tree["payloads"] = [len(self.payloads) + place for place in range(len(item.payloads))]
            self.payloads.extend(item.payloads)
        if "loss" in tree:
            tree["loss"] = dict(item.loss)
        return {"kind": kind, **tree}

    def from_tree(self, tree: Tree) -> Any:
        """Return the item that `to_tree` was called with."""
        # Serialization turns tuples into lists.
        values: dict[str, Any] = {
            name: tuple(value) if name in ("payloads", "keys", "finished") else value for name, value in tree.items()
        }
        kind = _KINDS[str(values.pop("kind"))]
        if "payloads" in values:
            values["payloads"] = tuple(self.payloads[number] for number in values["payloads"])
        return kind(**values)
