"""What the executor measures of every stage, and the hooks through which anything else may watch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from marlflow.flow.operators import StageTimes


class Condition(Enum):
    """What a stage is doing now."""

    BUSY = "busy"
    STARVED = "waits for input"
    BLOCKED = "waits for room, or for its turn"
    ENDED = "has ended"


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
    """One stage's figures: items and rows that came out of it, and seconds by condition. `dropped` counts items."""

    items: int = 0
    rows: int = 0
    dropped: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0

    def snapshot(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "items": self.items,
            "rows": self.rows,
            "dropped": self.dropped,
            "busy_s": self.busy_s,
            "starved_s": self.starved_s,
            "blocked_s": self.blocked_s,
        }


class Hook(Protocol):
    """Watches stages. `before` when items are handed to a stage, `after` with the times it really ran."""

    def before(self, stage: StageId, items: int) -> None:
        """`items` items are about to be handed to the stage."""

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        """The stage has dealt with `items` items."""


@dataclass(slots=True)
class Clock:
    """Charges the time between two looks at a cell to the condition it was in."""

    condition: Condition = Condition.STARVED
    since_s: float = 0.0
    spent_s: dict[Condition, float] = field(default_factory=lambda: dict.fromkeys(Condition, 0.0))

    def turn(self, condition: Condition, now_s: float) -> None:
        """The condition is `condition` from now on."""
        self.spent_s[self.condition] += now_s - self.since_s
        self.condition, self.since_s = condition, now_s


def rows_of(item: Any) -> int:
    """The agent steps an item stands for; 0 for items that stand for none."""
    return int(getattr(item, "rows", 0))
