"""A plan whose stream is closed uses its remaining items, while the others continue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from marlflow.flow import Executor, Feed, Flow, Plan, Rounds, source, together


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
        rounds=Rounds(),
    )
    executor = Executor(plan, lambda name, item: made[name].append(item))
    executor.run_sync()
    assert not any(executor.held().values())
    assert made == {"left": list(range(min(last, closed_at))), "right": list(range(last))}
