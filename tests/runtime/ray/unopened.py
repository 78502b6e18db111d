"""No rows are unpickled on the driver: an attempt fails the test, and is counted."""

from __future__ import annotations

import pytest

from marlflow.batches.batch import Batch, EstimatedBatch, Transitions

OPENED = "the driver opened rows"


class Guard:
    """Refuses to unpickle rows in this process, and counts the attempts."""

    opened = 0

    def refuse(self, *state: object) -> None:
        self.opened += 1
        raise AssertionError(OPENED)


def guarded(patch: pytest.MonkeyPatch, *others: type) -> Guard:
    """Until the patch is undone, no rows can be unpickled here. Others find these classes by name, and can."""
    guard = Guard()
    for kind in (Batch, EstimatedBatch, Transitions, *others):
        patch.setattr(kind, "__setstate__", guard.refuse)
    return guard
