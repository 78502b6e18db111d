"""Items that wait in a plan come back as they were, whatever their rows are."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from marlflow.base.errors import CheckpointFailed
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.batches.items import Fragment, Inserted, Packed, Update
from marlflow.driver.checkpointing import QueuedItems

ITEMS = [
    Fragment("prey", 1, 7, True, 12, 2, ("a", "b"), ("left", "right")),
    Packed(5, ("c",)),
    Fragment("prey", 0, 8, False, 0, 0, (), finished=([0.5, 2.0, 7],)),
    Inserted(3, 90),
    Update("prey", 4, 2, 9, {"td": 0.25}, 1.5, priorities=np.array([0.5, 2.0]), row_ids=np.array([7, 8])),
]


def test_items_come_back_with_their_own_rows() -> None:
    waiting = QueuedItems()
    trees = from_bytes(to_bytes([waiting.to_tree(item) for item in ITEMS]))
    back = QueuedItems([payload.upper() for payload in waiting.payloads])
    fragment, packed, empty, inserted, update = [back.from_tree(tree) for tree in trees]
    assert fragment == Fragment("prey", 1, 7, True, 12, 2, ("A", "B"), ("left", "right"))
    assert packed == Packed(5, ("C",))
    assert (empty, inserted) == (ITEMS[2], ITEMS[3])
    np.testing.assert_array_equal(update.priorities, [0.5, 2.0])
    np.testing.assert_array_equal(update.row_ids, [7, 8])
    assert (update.loss, update.staleness_mean, update.learner) == ({"td": 0.25}, 1.5, "prey")


def test_an_item_of_another_kind_cannot_be_kept_and_that_is_said() -> None:
    with pytest.raises(
        CheckpointFailed,
        match=r"a Fraction waits in the plan \(Fraction\(1, 3\)\), and only Fragment, JointFragment, Packed",
    ):
        QueuedItems().to_tree(Fraction(1, 3))


def test_items_of_numbers_texts_and_arrays_are_kept_as_they_are() -> None:
    items: list[Any] = [{"policy": -0.5, "of": ["a", 1, None, True]}, 3.0, "text", [1, 2], np.arange(3.0)]
    waiting = QueuedItems()
    trees = from_bytes(to_bytes([waiting.to_tree(item) for item in items]))
    back = [QueuedItems().from_tree(tree) for tree in trees]
    assert back[:-1] == items[:-1]
    np.testing.assert_array_equal(back[-1], items[-1])
    with pytest.raises(CheckpointFailed, match="a dict waits in the plan"):
        waiting.to_tree({"policy": Fraction(1, 3)})
