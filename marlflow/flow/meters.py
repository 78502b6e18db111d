"""What the executor measures of every stage, and the hooks through which anything else may watch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from marlflow.flow.operators import StageTimes


class Condition(IntEnum):
    """What a stage is doing now: it works, waits for input, waits for room or for its turn, or has ended."""

    BUSY = 0
    STARVED = 1
    BLOCKED = 2
    ENDED = 3


@dataclass(frozen=True, slots=True)
class StageId:
    """A stage and the plan it belongs to; `path` shows it among its neighbours."""

    plan: str
    stage: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.plan}/{self.stage}"


@dataclass(slots=True)
class Meter:
    """One stage's figures: items and rows that came out of it, and seconds by condition.

    `dropped` counts items; `rows_dropped` the rows of those that a buffer dropped.
    """

    items: int = 0
    rows: int = 0
    dropped: int = 0
    rows_dropped: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0

    def snapshot(self) -> dict[str, Any]:
        """The figures as plain data."""
        return asdict(self)


class Hook(Protocol):
    """Watches stages. Operators of one call are told one after the other; forks and merges take no time.

    A `before` without an `after` is a source that ended, or a stage that failed.
    """

    def before(self, stage: StageId, items: int) -> None:
        """`items` items are about to be handed to the stage."""

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        """The stage has run; `items` items came out of it."""


@dataclass(slots=True)
class Clock:
    """Charges the time between two looks at a cell to its condition; `called_s` is the time of landed calls."""

    condition: Condition = Condition.STARVED
    since_s: float = 0.0
    spent_s: list[float] = field(default_factory=lambda: [0.0] * len(Condition))
    call_began_s: float = 0.0
    called_s: float = 0.0

    def turn(self, condition: Condition, now_s: float) -> None:
        """The condition is `condition` from now on."""
        self.spent_s[self.condition] += now_s - self.since_s
        self.condition, self.since_s = condition, now_s


def rows_of(item: Any) -> int:
    """The agent steps an item stands for; 0 for items that stand for none."""
    return int(getattr(item, "rows", 0))
