"""A source with several items under way: none is lost or taken twice, and all arrive before a rest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.errors import PlanInvalid
from marlflow.flow import Executor, Feed, Flow, Plan, Traits, source, together


class Workers:
    """Each is busy for the number of event loop turns that `busy` gives next; `made` has their items, by number."""

    def __init__(self, count: int, busy: Iterator[int], most: int) -> None:
        self.count, self.busy, self.most = count, busy, most
        self.begun: dict[asyncio.Task[int], int] = {}
        self.made: list[int] = []
        self.going_home = False
        self._number = 0

    @property
    def under_way(self) -> int:
        return len(self.begun)

    async def _work(self, number: int) -> int:
        for _ in range(next(self.busy)):
            await asyncio.sleep(0)
        return number

    def __call__(self) -> Any:
        if not self.going_home and self._number < self.most:
            for worker in set(range(self.count)) - set(self.begun.values()):
                self.begun[asyncio.ensure_future(self._work(self._number))] = worker
                self._number += 1
        if not self.begun:
            raise StopIteration
        return self._next()

    async def _next(self) -> int:
        await asyncio.wait(self.begun, return_when=asyncio.FIRST_COMPLETED)
        task = next(task for task in self.begun if task.done())
        del self.begun[task]
        self.made.append(task.result())
        return task.result()


def plan(workers: Workers, taken: list[int]) -> Any:
    async def take(item: int) -> int:
        await asyncio.sleep(0)
        taken.append(item)
        return item

    def route(item: int) -> list[tuple[str, int]]:
        return [("only", item)]

    def build(flow: Flow[int]) -> Plan:
        return Plan("only", flow.then(take))

    return together(source(workers, name="workers"), route, {"only": build}, {"only": Feed(3)}, "asynchronous")


@given(st.integers(1, 4), st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(2, 7))
def test_everybody_comes_home_before_a_rest_and_nothing_is_lost(count: int, busy: list[int], every: int) -> None:
    workers = Workers(count, iter(busy * 100), most=40)
    taken: list[int] = []
    rests: list[int] = []

    def rest() -> None:
        assert workers.under_way == 0
        assert sorted(taken) == list(range(len(taken)))  # all that was begun has been used
        rests.append(len(taken))
        workers.going_home = False

    def between_rounds() -> Any:
        due = len(workers.made) >= every * (len(rests) + 1)
        workers.going_home = due
        return rest if due else None

    Executor(plan(workers, taken), between_rounds=between_rounds).run_sync()
    assert sorted(taken) == list(range(len(taken)))
    assert len(taken) >= 40
    assert rests


def test_a_worker_that_is_slow_holds_up_nobody() -> None:
    busy = iter([500, *[1] * 1_000])
    workers, taken = Workers(2, busy, most=30), list[int]()
    Executor(plan(workers, taken)).run_sync()
    assert taken[-1] == 0  # what was begun first is there last
    assert sorted(taken) == list(range(30))


def test_a_plan_that_allows_no_staleness_is_refused() -> None:
    class Strict:
        traits = Traits(max_staleness=0, publishes=True)

        def __call__(self, item: int) -> int:
            return item

    def build(flow: Flow[int]) -> Plan:
        return Plan("only", flow.then(Strict()), waits_for_rounds=True)

    made = together(
        source(Workers(1, iter(()), 0), name="workers"),
        lambda item: [("only", item)],
        {"only": build},
        {"only": Feed(1)},
        "asynchronous",
    )
    with pytest.raises(
        PlanInvalid, match=r"rounds do not wait for learning, so rows are a version old.*max_staleness 0"
    ):
        made.check()


class Dozen:
    """A gather that keeps its items until it has twelve, or until no more will come."""

    traits = Traits(at_most_one=True)

    def __init__(self) -> None:
        self.held: list[int] = []

    def add(self, item: int) -> list[tuple[int, ...]]:
        self.held.append(item)
        return self.rest() if len(self.held) == 12 else []

    def rest(self) -> list[tuple[int, ...]]:
        found, self.held[:] = [tuple(self.held)] if self.held else [], []
        return found


@pytest.mark.parametrize("closed", [True, False])
def test_a_gather_gives_its_rest_when_nothing_more_will_come_and_only_then(closed: bool) -> None:
    given: list[tuple[int, ...]] = []
    made = iter(range(30))

    def build(flow: Flow[int]) -> Plan:
        return Plan("only", flow.gather(Dozen()))

    def route(item: int) -> list[tuple[str, int]]:
        if closed and item == 29:
            executor.close_plan("only")
        return [("only", item)]

    joined = together(
        source(lambda: next(made), name="numbers"), route, {"only": build}, {"only": Feed(40)}, "lockstep"
    )
    executor = Executor(joined, lambda _, item: given.append(item))
    executor.run_sync()
    assert [len(part) for part in given[:2]] == [12, 12]
    assert [item for part in given[2:] for item in part] == (list(range(24, 29)) if closed else [])
