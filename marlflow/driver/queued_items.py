"""Items that wait in a plan between two rounds, as what can be kept of them: their rows stay packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from marlflow.base.errors import CheckpointFailed
from marlflow.base.items import Fragment, Inserted, JointFragment, Packed, Update
from marlflow.base.serialization import Tree

_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in (Fragment, JointFragment, Packed, Inserted, Update)}


class QueuedItems:
    """Makes trees of items, and items of trees; `payloads` are the rows of all of them, in the order of their trees."""

    def __init__(self, payloads: Sequence[Any] = ()) -> None:
        self.payloads = list(payloads)

    def keep(self, item: Any) -> Tree:
        """The tree of an item; raises CheckpointFailed for an item of a user's own kind."""
        kind = type(item).__name__
        if _KINDS.get(kind) is not type(item):
            raise CheckpointFailed(f"{item!r} waits in the plan, and only {', '.join(_KINDS)} can be kept")
        tree = {field.name: getattr(item, field.name) for field in fields(item)}
        if "payloads" in tree:
            tree["payloads"] = [len(self.payloads) + place for place in range(len(item.payloads))]
            self.payloads.extend(item.payloads)
        if "loss" in tree:
            tree["loss"] = dict(item.loss)
        return {"kind": kind, **tree}

    def give_back(self, tree: Tree) -> Any:
        """The item that `keep` made `tree` of."""
        values: dict[str, Any] = {
            name: tuple(value) if name in ("payloads", "keys", "finished") else value for name, value in tree.items()
        }
        kind = _KINDS[str(values.pop("kind"))]
        if "payloads" in values:
            values["payloads"] = tuple(self.payloads[number] for number in values["payloads"])
        return kind(**values)
