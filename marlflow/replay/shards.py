"""Several replays for one policy: rows are numbered so that a number says which shard holds its row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from marlflow.base.items import Update

SHARD_SPAN = 2**52
"""How many row numbers a shard has for itself: more than its rows, and those of all its successors, ever need."""


def first_row_of(shard: int) -> int:
    """The number of the first row that a shard is given."""
    return shard * SHARD_SPAN


class ByShard:
    """Routes what a learner reports of a draw back to the shard that it came from, 0, 1, ..."""

    routes: ClassVar[Any] = Update

    def __call__(self, update: Update) -> Iterator[tuple[int, Update]]:
        """The report, with its shard; one that names no rows goes to the first."""
        ids = update.row_ids
        yield (0 if ids is None or not len(ids) else int(ids[0]) // SHARD_SPAN), update
