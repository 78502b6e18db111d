"""A plan whose stream is closed uses its remaining items, while the others continue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.errors import StageFailed
from marlflow.flow import AgentSteps, Executor, Feed, Flow, InTurn, Plan, Traits, source, together


class ByParity:
    """Every number to both plans."""

    def __call__(self, number: int) -> Iterator[tuple[str, int]]:
        yield "left", number
        yield "right", number


async def slow(item: int) -> int:
    for _ in range(4):
        await asyncio.sleep(0)
    return item


@given(last=st.integers(1, 12), closed_at=st.integers(0, 12), capacity=st.integers(1, 4))
def test_a_closed_plan_takes_nothing_more_and_loses_nothing(last: int, closed_at: int, capacity: int) -> None:
    made: dict[str, list[int]] = {"left": [], "right": []}
    numbers = iter(range(last))
    executor: Executor

    def next_number() -> int:
        number = next(numbers)
        if number == closed_at:
            executor.close_plan("left")
        return number

    def build(experience: Flow[int]) -> Plan:
        return Plan("any", experience.then(slow))

    plan = together(
        source(next_number),
        by=ByParity(),
        plans={"left": build, "right": build},
        feeds={name: Feed(capacity) for name in made},
        rounds="lockstep",
    )
    executor = Executor(plan, lambda name, item: made[name].append(item))
    executor.run_sync()
    assert not any(executor.held().values())
    assert made == {"left": list(range(min(last, closed_at))), "right": list(range(last))}


class Pairs:
    """Sums of two numbers; `rest` is the last number, if it has no partner."""

    def __init__(self, fails: bool = False) -> None:
        self.held: list[int] = []
        self.fails = fails

    def add(self, number: int) -> list[int]:
        self.held.append(number)
        return self.rest() if len(self.held) == 2 else []

    def rest(self) -> list[int]:
        if self.fails and len(self.held) < 2:
            raise ValueError("no partner")
        held, self.held = self.held, []
        return [sum(held)] if held else []


class AtMostOne(Pairs):
    """A gather that may be on a paced side: it gives each number once the next one has come."""

    traits = Traits(at_most_one=True)

    def add(self, number: int) -> list[int]:
        self.held.append(number)
        return [self.held.pop(0)] if len(self.held) == 2 else []


@dataclass
class Rows:
    """An item of `rows` agent steps."""

    rows: int


@given(last=st.integers(0, 7), stopped_at=st.integers(0, 12))
def test_a_gather_gives_its_rest_if_its_source_ends_by_itself(last: int, stopped_at: int) -> None:
    made: list[int] = []
    numbers = iter(range(1, last + 1))
    executor: Executor

    def next_number() -> int:
        number = next(numbers)
        if number == stopped_at:
            executor.stop()
        return number

    pairs = Pairs()
    executor = Executor(Plan("any", source(next_number).gather(pairs)), lambda _, item: made.append(item))
    executor.run_sync()
    passed = range(1, min(last, stopped_at or last) + 1)
    is_stopped = 0 < stopped_at <= last
    assert sum(made) + sum(pairs.held) == sum(passed)
    assert bool(pairs.held) == (is_stopped and len(passed) % 2 == 1), "what a stopped plan holds is for its checkpoint"


def test_a_rest_that_raises_names_its_stage() -> None:
    executor = Executor(Plan("any", source(iter([1, 2, 3]).__next__).gather(Pairs(fails=True))))
    with pytest.raises(StageFailed, match="no partner") as raised:
        executor.run_sync()
    assert (raised.value.plan, raised.value.stage) == ("any", "Pairs")


def test_a_side_that_ends_by_its_pace_gives_no_rest() -> None:
    made: list[int] = []
    stored, numbers = iter([2]), count()
    pairs = source(numbers.__next__).gather(AtMostOne())
    store = source(stored.__next__, name="Store").then(Rows)
    pace = InTurn(store=AgentSteps(2), output=1)
    executor = Executor(Plan("any", pairs, also={"store": store}, pace=pace), lambda _, item: made.append(item))
    executor.run_sync()
    assert made == [0]
    assert next(iter(executor.state(lambda item: item)["paces"].values()))["owed"] == 0
