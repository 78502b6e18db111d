"""A plan that restarts: queued items are dropped and counted, paces restart, and no other plan changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from marlflow.flow import AgentSteps, Executor, Feed, Flow, InTurn, Plan, Traits, source
from marlflow.flow.pace import AtMost
from marlflow.flow.plan import Together, together
from tests.flow.fakes import Item, Keep

ROUNDS = 12


class Threes:
    """A gather that keeps items until it has three."""

    traits = Traits(at_most_one=True)

    def __init__(self) -> None:
        self.held: list[Item] = []

    def add(self, item: Item) -> Sequence[list[Item]]:
        self.held.append(item)
        if len(self.held) < 3:
            return []
        complete, self.held[:] = list(self.held), []
        return [complete]


class Rounded:
    """A source of rounds, each its number."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        if self.number == ROUNDS:
            raise StopIteration
        self.number += 1
        return self.number


def both(number: int) -> list[tuple[str, Item]]:
    return [("one", Item(number, 2)), ("other", Item(number, 2))]


def of(build: Callable[[Flow[Any]], Plan], capacity: int = 4) -> Together:
    return together(
        source(Rounded()),
        by=both,
        plans={"one": build, "other": build},
        feeds=dict.fromkeys(("one", "other"), Feed(capacity)),
        rounds="lockstep",
    )


def run(plan: Together, at: int) -> tuple[dict[str, list[Any]], int, Executor]:
    """All outputs by plan, and the rows dropped by a restart of the first before round `at`."""
    outputs: dict[str, list[Any]] = {"one": [], "other": []}
    rounds, dropped = 0, 0

    def between_rounds() -> Callable[[], None] | None:
        nonlocal rounds
        rounds += 1
        return restart if rounds == at else None

    def restart() -> None:
        nonlocal dropped
        dropped = executor.restart("one")
        assert not any(count for stage, count in executor.held().items() if stage.startswith("one/"))

    executor = Executor(plan, lambda name, item: outputs[name].append(item), between_rounds=between_rounds)
    executor.run_sync()
    return outputs, dropped, executor


def test_what_a_gather_holds_is_dropped_and_counted_and_the_other_plan_goes_on() -> None:
    outputs, dropped, executor = run(of(lambda experience: Plan("p", experience.gather(Threes()))), at=6)
    numbers = {name: [[item.number for item in batch] for batch in batches] for name, batches in outputs.items()}
    assert dropped == 4
    assert numbers["one"] == [[1, 2, 3], [6, 7, 8], [9, 10, 11]]
    assert numbers["other"] == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    meters = executor.meters()
    assert (meters["one/Threes"]["dropped"], meters["one/Threes"]["rows_dropped"]) == (2, 4)
    assert meters["other/Threes"]["dropped"] == 0


def test_full_queues_are_emptied_and_what_comes_later_is_taken() -> None:
    """A queue that is full, since its side has its first turn only after 10 rows of the other."""

    def build(experience: Flow[Any]) -> Plan:
        store, copy = experience.fork(2, capacity=1)
        newest = copy.queue(2, full="drop_oldest", name="newest").then(Keep())
        return Plan("p", newest, also={"store": store}, pace=InTurn(store=AgentSteps(2, starts=10), output=1))

    outputs, dropped, executor = run(of(build), at=5)
    assert dropped == 4
    # From the restart on, 10 rows come first again.
    assert [item.number for item in outputs["one"]] == [9, 10, 11]
    assert [item.number for item in outputs["other"]] == [5, 6, 7, 8, 9, 10, 11]
    # All that did not come out is counted.
    meters = executor.meters()
    assert meters["one/newest"]["rows_dropped"] == 2 * (ROUNDS - 3)
    assert meters["other/newest"]["rows_dropped"] == 2 * (ROUNDS - 7)


@given(
    st.lists(st.integers(1, 9), max_size=12),
    st.lists(st.integers(1, 9), max_size=12),
    st.integers(1, 5),
    st.integers(0, 15),
    st.booleans(),
    st.booleans(),
)
def test_a_restarted_ledger_is_a_new_one(
    before: list[int], after: list[int], per: int, starts: int, spends: bool, at_most: bool
) -> None:
    pace = (AtMost if at_most else InTurn)(store=AgentSteps(per, starts), output=1)
    ledger, new = pace.ledger(), pace.ledger()
    for rows in before:
        ledger.took("store", rows)
        while spends and ledger.permits("output"):
            ledger.took("output", 0)
    ledger.restart()
    assert ledger.permits("output") == 0
    for rows in after:
        for one in (ledger, new):
            one.took("store", rows)
        assert ledger.permits("output") == new.permits("output")
        assert ledger.permits("store") == new.permits("store")
        if spends and new.permits("output"):
            for one in (ledger, new):
                one.took("output", 0)


def test_a_restarted_ledger_of_items_begins_with_the_first_side() -> None:
    ledger = InTurn(left=2, right=3).ledger()
    for side in ("left", "left", "right"):
        ledger.took(side, 0)
    assert (ledger.permits("left"), ledger.permits("right")) == (0, 2)
    ledger.restart()
    assert (ledger.permits("left"), ledger.permits("right")) == (2, 0)
