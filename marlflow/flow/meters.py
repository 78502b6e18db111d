"""Stage metrics, and hooks for observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

from marlflow.flow.protocols import StageTimes


class Condition(IntEnum):
    """A stage's activity; BLOCKED waits for room or its turn."""

    BUSY = 0
    STARVED = 1
    BLOCKED = 2
    ENDED = 3


@dataclass(frozen=True, slots=True)
class StageId:
    """A stage and its plan; `path` lists the plan's stages."""

    plan: str
    stage: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.plan}/{self.stage}"


@dataclass(slots=True)
class Meter:
    """Metrics of one stage: items and rows emitted, dropped, and seconds per condition."""

    items: int = 0
    rows: int = 0
    dropped: int = 0
    rows_dropped: int = 0
    busy_s: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0

    def snapshot(self) -> dict[str, Any]:
        """Return the metrics as plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


class Hook(Protocol):
    """Observes stages; operators of a fused call are reported in order.

    There is no `after` if the source ended or the stage failed.
    """

    def before(self, stage: StageId, items: int) -> None:
        """Handle a stage's coming call with `items` items."""

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        """Handle a stage's call that emitted `items` items."""


@dataclass(slots=True)
class Clock:
    """Adds up a cell's seconds per condition; `called_s` is the duration of completed calls."""

    condition: Condition = Condition.STARVED
    since_s: float = 0.0
    spent_s: list[float] = field(default_factory=lambda: [0.0] * len(Condition))
    call_began_s: float = 0.0
    called_s: float = 0.0

    def turn(self, condition: Condition, now_s: float) -> None:
        """Charge the time since the last change, and switch to `condition`."""
        self.spent_s[self.condition] += now_s - self.since_s
        self.condition, self.since_s = condition, now_s


def rows_of(item: Any) -> int:
    """Return the item's `rows` (agent steps), or 0."""
    return int(getattr(item, "rows", 0))
