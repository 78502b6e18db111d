"""Small parts of which the tests of flow/ make plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from marlflow.base.errors import PlanInvalid
from marlflow.flow import AnyPlan, Executor, OperatorRaised, Outcome, StageCall, StageId, StageTimes, Traits


@dataclass(frozen=True)
class Item:
    """Something with rows."""

    number: int = 0
    rows: int = 1


class Count:
    """A source of the numbers from 1 to `last`, or without end; each is `make` of its number."""

    def __init__(self, last: int | None = None, make: Callable[[int], Any] = lambda number: number) -> None:
        self.last, self.make, self.made = last, make, 0

    def __call__(self) -> Any:
        if self.made == self.last:
            raise StopIteration
        self.made += 1
        return self.make(self.made)


class Keep:
    """Passes its items on, and remembers them."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, item: Any) -> Any:
        self.seen.append(item)
        return item


class Batches:
    """Gathers `size` items to a list."""

    traits = Traits(at_most_one=True)

    def __init__(self, size: int) -> None:
        self.size, self.held = size, []  # type: ignore[var-annotated]

    def add(self, item: Any) -> list[list[Any]]:
        self.held.append(item)
        if len(self.held) < self.size:
            return []
        full, self.held = self.held, []
        return [full]


@dataclass(eq=False)
class FakePlace:
    """Runs stages here, and counts its calls and the items of each; it is what they run at, too."""

    name: str
    calls: list[int] = field(default_factory=list)
    prepared: list[list[StageCall]] = field(default_factory=list)

    @property
    def place(self) -> FakePlace:
        return self

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Any]:
        self.prepared.append(list(calls))

        async def call(items: Sequence[Any]) -> Outcome:
            self.calls.append(len(items))
            outputs = [_through(calls, item) for item in items]
            rows = sum(getattr(output, "rows", 0) for output in outputs)
            return Outcome(outputs, [StageTimes(float(i), i + 0.25, rows) for i, _ in enumerate(calls)])

        return call


def _through(calls: Sequence[StageCall], item: Any) -> Any:
    for position, call in enumerate(calls):
        try:
            item = call(item)
        except Exception as error:
            raise OperatorRaised(position, f"{type(error).__name__}: {error}") from error
    return item


class Log:
    """A hook that writes down every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []

    def before(self, stage: StageId, items: int) -> None:
        self.events.append(("before", str(stage), items))

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        self.events.append(("after", str(stage), items))


def outputs(plan: AnyPlan, name: str | None = None) -> list[Any]:
    """The outputs of the plan, or of one of several."""
    found: list[Any] = []
    Executor(plan, lambda which, item: found.append(item) if name in (None, which) else None).run_sync()
    return found


def problems(plan: AnyPlan) -> list[str]:
    """The problems that check() finds."""
    try:
        plan.check()
    except PlanInvalid as error:
        return list(error.problems)
    return []
