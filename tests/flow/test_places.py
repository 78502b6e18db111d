"""Operators that run elsewhere: what becomes one call, and how its stages are told apart."""

from typing import Any

import pytest

from marlflow.base.errors import StageFailed
from marlflow.flow import Executor, Outcome, Plan, source
from tests.flow.fakes import Count, FakePlace, Item, Keep, Log, outputs


class At(Keep):
    """An operator that runs at a place."""

    def __init__(self, place: FakePlace, name: str, fail_on: Any = None) -> None:
        super().__init__()
        self.place, self.name, self.fail_on = place, name, fail_on

    def __call__(self, item: Any) -> Any:
        if item == self.fail_on:
            raise ValueError("bad item")
        return super().__call__(item)


def test_neighbours_of_one_place_are_one_call_metered_and_named_apart() -> None:
    place, log = FakePlace("learner"), Log()
    a, b, c = (At(place, name) for name in ("Advantages", "Learn", "Publish"))
    plan = Plan("p", source(Count(2, lambda n: Item(n, 5)), name="Read").then(a).then(b).then(c))
    executor = Executor(plan, hooks=[log])
    executor.run_sync()
    assert place.prepared == [[a, b, c]]
    assert place.calls == [1, 1]
    meters = executor.meters()
    for stage in ("Advantages", "Learn", "Publish"):
        assert meters[f"p/{stage}"]["items"] == 2
        assert meters[f"p/{stage}"]["rows"] == 10
        assert meters[f"p/{stage}"]["busy_s"] == 0.5
        assert log.events.count(("before", f"p/{stage}", 1)) == log.events.count(("after", f"p/{stage}", 1)) == 2


def test_stages_of_other_places_and_after_a_buffer_are_calls_of_their_own() -> None:
    one, two = FakePlace("one"), FakePlace("two")
    flow = source(Count(1)).then(At(one, "a")).then(At(two, "b")).then(At(two, "c")).queue(1).then(At(two, "d"))
    assert outputs(Plan("p", flow)) == [1]
    assert [len(operators) for operators in one.prepared + two.prepared] == [1, 2, 1]


def test_all_that_waits_goes_in_one_call() -> None:
    place = FakePlace("replay")
    kept = At(place, "Insert")
    assert outputs(Plan("p", source(Count(9)).queue(4).then(kept))) == list(range(1, 10))
    assert kept.seen == list(range(1, 10))
    assert max(place.calls) > 1
    assert max(place.calls) <= 4


def test_an_error_at_a_place_names_the_stage_that_raised() -> None:
    place = FakePlace("learner")
    flow = source(Count(3), name="Read").then(At(place, "Advantages")).then(At(place, "Learn", fail_on=2)).then(Keep())
    with pytest.raises(StageFailed) as caught:
        Executor(Plan("adversary", flow)).run_sync()
    assert str(caught.value).splitlines() == [
        "in stage 'Learn' of plan 'adversary': Read -> Advantages -> Learn -> Keep",
        "ValueError: bad item",
    ]
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_source_at_a_place_ends_there() -> None:
    class Draw(Count):
        place = FakePlace("replay")

    assert outputs(Plan("p", source(Draw(3)))) == [1, 2, 3]


def test_a_place_that_loses_items_is_found_out() -> None:
    class Loses(FakePlace):
        def prepare(self, operators: Any) -> Any:
            return lambda items: Outcome([], [])

    with pytest.raises(StageFailed, match="its place returned 0 outputs for 1 items"):
        Executor(Plan("p", source(Count(3)).then(At(Loses("learner"), "Learn")))).run_sync()
