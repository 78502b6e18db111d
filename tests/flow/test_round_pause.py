"""Rest between rounds, and another executor that continues from the state there."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.flow import Executor, Feed, Outcome, StageCall, StageTimes
from marlflow.flow.plan import Together, together

ROUNDS = 12


@dataclass(frozen=True)
class Part:
    """One policy's part of a round."""

    number: int
    rows: int


class Threes:
    """A gather that keeps parts until it has three."""

    traits = mf.Traits(at_most_one=True)

    def __init__(self) -> None:
        self.held: list[Part] = []

    def add(self, part: Part) -> Sequence[tuple[Part, ...]]:
        self.held.append(part)
        if len(self.held) < 3:
            return []
        complete, self.held[:] = tuple(self.held), []
        return [complete]


@dataclass
class World:
    """All that lives outside the plan, and so is kept by others: what has been collected, drawn and made of it."""

    rounds: int = 0
    drawn: int = 0
    made: list[Any] = field(default_factory=list)


@dataclass
class Settings:
    """A plan's sizes."""

    rows: list[int]
    per: int
    starts: int
    capacity: int
    shares: tuple[int, int]
    hops: int


class Publish:
    """The end of an on-policy plan."""

    traits = mf.Traits(publishes=True)

    def __call__(self, item: Any) -> Any:
        return item


def same(item: Any) -> Any:
    return item


def collected(world: World, settings: Settings, stop_after: int) -> tuple[mf.Flow[int], Callable[[int], Any]]:
    """The shared stream, and how it is divided."""

    def collect() -> int:
        if world.rounds >= stop_after:
            raise StopIteration
        world.rounds += 1
        return world.rounds

    def divide(number: int) -> Iterator[tuple[str, Part]]:
        for name in ("gathers", "stores", "merges"):
            yield name, Part(number, settings.rows[number % len(settings.rows)])

    return mf.source(collect), divide


def build(world: World, settings: Settings, stop_after: int) -> Together:
    """Three plans over one stream: a gather, a ratio in rows, and a merge in turn that leaves items waiting."""

    async def later(item: Any) -> Any:
        for _ in range(settings.hops):
            await asyncio.sleep(0)
        return item

    def draw() -> int:
        world.drawn += 1
        return world.drawn

    def gathers(experience: mf.Flow[Any]) -> mf.Plan:
        return mf.Plan("gathers", experience.gather(Threes()).then(Publish()), waits_for_rounds=True)

    def stores(experience: mf.Flow[Any]) -> mf.Plan:
        pace = mf.InTurn(store=mf.AgentSteps(settings.per, settings.starts), output=1)
        return mf.Plan("stores", mf.source(draw).then(later), {"store": experience.then(same, name="store")}, pace)

    def merges(experience: mf.Flow[Any]) -> mf.Plan:
        left, right = experience.fork(2, capacity=settings.capacity)
        first, second = settings.shares
        merged = mf.merge(mf.InTurn(left=first, right=second), left=left.gather(Threes()), right=right.then(later))
        return mf.Plan("merges", merged)

    stream, divide = collected(world, settings, stop_after)
    plans = {"gathers": gathers, "stores": stores, "merges": merges}
    return together(stream, by=divide, plans=plans, feeds={name: Feed(4) for name in plans}, rounds="lockstep")


def run(
    world: World,
    settings: Settings,
    stop_after: int = ROUNDS,
    state: Any = None,
    rest: Callable[[Executor], Callable[[], None] | None] | None = None,
) -> Executor:
    """Runs the plan in `world`; whatever leaves it is written down there."""
    executors: list[Executor] = []
    asked = None if rest is None else (lambda: rest(executors[0]))
    plan = build(world, settings, stop_after)
    executor = Executor(plan, lambda name, item: world.made.append((name, item)), between_rounds=asked)
    executors.append(executor)
    if state is not None:
        executor.load_state(state, lambda item: item)
    executor.run_sync()
    return executor


SETTINGS = st.builds(
    Settings,
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    per=st.integers(1, 7),
    starts=st.integers(0, 20),
    capacity=st.integers(3, 5),
    shares=st.sampled_from([(1, 3)]),
    hops=st.integers(0, 3),
)


@given(SETTINGS, st.integers(1, ROUNDS - 1))
def test_what_is_kept_at_rest_goes_on_as_if_it_had_never_stopped(settings: Settings, at: int) -> None:
    kept: list[Any] = []

    def rest(world: World) -> Callable[[Executor], Callable[[], None] | None]:
        def asked(executor: Executor) -> Callable[[], None] | None:
            return (
                (lambda: kept.append((executor.state(copy.copy), copy.deepcopy(world)))) if world.rounds == at else None
            )

        return asked

    whole = World()
    went_on = run(whole, settings, rest=rest(whole))
    [(state, world)] = kept
    resumed = run(world, settings, state=state)
    assert [made for made in whole.made if made[0] == "gathers"] == [
        made for made in world.made if made[0] == "gathers"
    ]
    assert sorted(map(repr, whole.made)) == sorted(map(repr, world.made))
    items = {
        stage: (figures["items"], figures["rows"], figures["dropped"]) for stage, figures in went_on.meters().items()
    }
    assert items == {
        stage: (figures["items"], figures["rows"], figures["dropped"]) for stage, figures in resumed.meters().items()
    }


@given(SETTINGS, st.integers(0, ROUNDS - 1))
def test_at_rest_nothing_is_in_flight_and_the_ratio_holds(settings: Settings, at: int) -> None:
    world, seen = World(), []

    def asked(executor: Executor) -> Callable[[], None] | None:
        if world.rounds != at:
            return None
        before = world.rounds

        def at_rest() -> None:
            assert world.rounds == before
            stored = sum(settings.rows[number % len(settings.rows)] for number in range(1, at + 1))
            assert world.drawn == max(0, stored - settings.starts) // settings.per
            seen.append({name: held for name, held in executor.held().items() if held})

        return at_rest

    run(world, settings, rest=asked)
    assert len(seen) == 1
    assert not any(name.startswith(("together/", "stores/")) for name in seen[0])
    assert world.rounds == ROUNDS


def test_a_rest_is_asked_for_once_before_each_round_and_before_the_end() -> None:
    world, settings, asked = World(), Settings([3], 1, 0, 3, (1, 3), 2), []

    def rest(_executor: Executor) -> Callable[[], None]:
        asked.append(world.rounds)
        return lambda: None

    run(world, settings, stop_after=3, rest=rest)
    assert asked == [0, 1, 2, 3]


def test_a_source_that_nothing_holds_is_held_while_a_rest_is_wanted() -> None:
    world, settings, free, seen = World(), Settings([3], 1, 0, 3, (1, 3), 2), [], []

    def numbers() -> int:
        free.append(len(free))
        return len(free)

    def at_rest() -> None:
        seen.append((len(free), {name: held for name, held in executor.held().items() if held}))

    stream, divide = collected(world, settings, stop_after=5)
    plan = together(
        stream,
        by=lambda number: [part for part in divide(number) if part[0] == "merges"],
        plans={
            "merges": lambda given: mf.Plan("merges", given, {"beside": mf.source(numbers).then(same)}, mf.Freely())
        },
        feeds={"merges": Feed(4)},
        rounds="lockstep",
    )
    executor = Executor(plan, between_rounds=lambda: at_rest if world.rounds == 3 else None)
    executor.run_sync()
    [(made, held)] = seen
    assert 0 < made <= len(free)
    assert held == {}
    assert world.rounds == 5


def test_the_state_of_another_plan_is_refused() -> None:
    executor = run(World(), Settings([3], 1, 0, 3, (1, 3), 0), stop_after=2)
    other = Executor(mf.Plan("other", mf.source(iter([1]).__next__, name="numbers")))
    with pytest.raises(mf.CheckpointUnusable, match=r"of another plan: .*stores"):
        other.load_state(executor.state(lambda item: item), lambda item: item)


class Lossy:
    """A place that loses one call in three, with all its items."""

    name = "lossy"

    def __init__(self) -> None:
        self.calls = self.lost = 0

    @property
    def place(self) -> Lossy:
        return self

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Outcome]:
        def call(items: Sequence[Any]) -> Outcome:
            self.calls += 1
            times = [StageTimes(0.0, 0.0, 0)] * len(calls)
            if self.calls % 3 == 0:
                self.lost += len(items)
                return Outcome([], times, lost=len(items))
            return Outcome([calls[0](item) for item in items], times)

        return call


@given(st.integers(1, 5), st.integers(0, 9))
def test_lost_items_are_counted_and_use_no_turn(per: int, starts: int) -> None:
    place, drawn, parts = Lossy(), [], iter([Part(number, 4) for number in range(20)])
    draws = mf.source(lambda: drawn.append(1), at=place, name="draw")
    store = mf.source(parts.__next__, name="parts").then(lambda part: part, at=Lossy(), name="store")
    pace = mf.InTurn(store=mf.AgentSteps(per, starts), output=1)
    executor = Executor(mf.Plan("p", draws, {"store": store}, pace))
    executor.run_sync()
    figures = executor.meters()
    stored = figures["p/store"]["items"] * 4
    assert figures["p/store"]["dropped"] == 20 - figures["p/store"]["items"] == 6
    assert len(drawn) == figures["p/draw"]["items"] == max(0, stored - starts) // per
    assert figures["p/draw"]["dropped"] == place.lost > 0 or len(drawn) < 3
