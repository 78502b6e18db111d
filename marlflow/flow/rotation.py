"""A round-robin split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Rotation:
    """Routes items to branches 0 to `branches` - 1 round-robin; the position is saved with the plan.

    >>> deal = Rotation(2)
    >>> [branch for item in "abc" for branch, _ in deal(item)]
    [0, 1, 0]
    """

    branches: int
    next_branch: int = field(default=0, repr=False)

    def __call__(self, item: Any) -> Iterator[tuple[int, Any]]:
        yield self.next_branch, item
        self.next_branch = (self.next_branch + 1) % self.branches
