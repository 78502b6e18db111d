"""A limit on how often one side goes, a merge that hands on one side alone, and a split that deals in turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.flow import AgentSteps, AtMost, Executor, Freely, InTurn, Plan, Rotation, merge, source
from tests.flow.fakes import Count, Item, Keep, outputs, problems


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 15), st.data())
def test_followers_have_at_most_their_turns_and_the_leader_never_waits(
    rows: list[int], per: int, starts: int, data: st.DataObject
) -> None:
    ledger = AtMost(store=AgentSteps(per, starts), output=1).ledger()
    stored = taken = 0
    for amount in rows:
        assert ledger.permits("store") > 1_000
        ledger.took("store", amount)
        stored += amount
        earned = max(0, stored - starts) // per
        assert ledger.permits("output") == earned - taken
        for _ in range(data.draw(st.integers(0, earned - taken))):
            ledger.took("output", 0)
            taken += 1
        kept = AtMost(store=AgentSteps(per, starts), output=1).ledger()
        kept.load_state(ledger.state())
        ledger = kept
        assert ledger.permits("output") == earned - taken
    assert ledger.may_stop("output", idle=False)
    ledger.leave("store")
    assert ledger.is_over("output") == (ledger.permits("output") == 0)


@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 20), st.integers(1, 5))
def test_where_nothing_takes_time_the_limit_is_reached(items: int, per: int, starts: int, rows: int) -> None:
    """A source without end draws exactly as often as it may, and the plan ends."""
    draws = Count()
    drawn = merge(
        AtMost(store=AgentSteps(per, starts), draw=1),
        store=source(Count(items, lambda number: Item(number, rows)), name="Store"),
        draw=source(draws, name="Draw"),
    ).only("draw")
    expected = max(0, items * rows - starts) // per
    assert outputs(Plan("p", drawn)) == list(range(1, expected + 1))


def test_the_leader_goes_on_while_its_follower_is_busy() -> None:
    released = asyncio.Event()

    async def learn(number: int) -> int:
        await released.wait()
        return number

    def store(item: Item) -> Item:
        if item.number == 10:
            released.set()
        return item

    def plan(pace: Any) -> Plan:
        drawn = merge(pace, store=source(Count(10, Item)).then(store), draw=source(Count(), name="Draw"))
        return Plan("p", drawn.only("draw").queue(2, name="Draws").then(learn))

    assert outputs(plan(AtMost(store=AgentSteps(1), draw=1))) == list(range(1, 11))


def test_what_check_says_of_limits_and_of_sides_that_are_not_there() -> None:
    one, other = source(Count(1), name="a"), source(Count(1), name="b")
    assert problems(Plan("p", merge(AtMost(a=1, b=1), a=one, b=other))) == [
        "merge 'merge' of plan 'p': AtMost needs one side in agent steps, which earns the others their turns"
    ]
    assert problems(Plan("p", merge(Freely(), a=one, b=other).only("c"))) == [
        "merge 'merge' of plan 'p' is to hand on only 'c', but its sides are 'a' and 'b'"
    ]
    one, other = source(Count(1, Item), name="a"), source(Count(1), name="b")
    limited = Plan("p", merge(AtMost(a=AgentSteps(4, 10), b=1), a=one, b=other).only("b"))
    assert problems(limited) == []
    assert "merge, at most: b 1 for every 4 agent steps of a, after the first 10; hands on b" in str(limited)


def test_sides_that_are_not_handed_on_need_no_room() -> None:
    """No stage takes the items until all of the other side have come: with one side's room the plan would stall."""
    seen = Keep()
    ahead = source(Count(50), name="a").then(seen)
    joined = merge(InTurn(a=50, b=1), a=ahead, b=source(Count(1), name="b")).only("b")
    assert outputs(Plan("p", joined)) == [1]
    assert len(seen.seen) == 50


@given(st.integers(0, 20), st.integers(1, 5))
def test_items_are_dealt_to_each_branch_in_turn(items: int, branches: int) -> None:
    dealt = source(Count(items)).split(Rotation(branches), range(branches))
    kept = [Keep() for _ in range(branches)]
    ends = {f"to_{n}": dealt[n].then(kept[n], name=f"Keep {n}") for n in range(branches)}
    Executor(Plan("p", merge(Freely(), **ends))).run_sync()
    assert [one.seen for one in kept] == [list(range(n + 1, items + 1, branches)) for n in range(branches)]


@pytest.mark.parametrize("before", range(4))
def test_whose_turn_it_is_is_kept(before: int) -> None:
    def begun() -> tuple[Executor, list[Keep]]:
        dealt = source(Count(before), name="Read").split(Rotation(3), range(3))
        kept = [Keep() for _ in range(3)]
        ends = {f"to_{n}": dealt[n].then(kept[n], name=f"Keep {n}") for n in range(3)}
        return Executor(Plan("p", merge(Freely(), **ends))), kept

    first, _ = begun()
    first.run_sync()
    state = first.state(lambda item: item)
    state["exhausted"] = []
    again, kept = begun()
    again.load_state(state, lambda item: item)
    again.run_sync()
    places = [(n, item) for n, one in enumerate(kept) for item in one.seen]
    assert sorted(places, key=lambda place: place[1]) == [((before + i) % 3, i + 1) for i in range(before)]
