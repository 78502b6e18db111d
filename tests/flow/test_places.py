"""Operators that run at places: which stages become one call, and how their results are separated."""

import functools
import pickle
from typing import Any

import pytest

from marlflow.base.errors import StageFailed
from marlflow.flow import Executor, Outcome, Plan, Traits, source
from tests.flow.fakes import Count, FakePlace, Item, Keep, Log, outputs, problems


class Picky(Keep):
    """Remembers its items, and fails for one of them."""

    def __init__(self, fail_on: Any = None) -> None:
        super().__init__()
        self.fail_on = fail_on

    def __call__(self, item: Any) -> Any:
        if item == self.fail_on:
            raise ValueError("bad item")
        return super().__call__(item)


def test_neighbors_of_one_place_are_one_call_metered_and_named_apart() -> None:
    place, log = FakePlace("learner"), Log()
    operators = {name: Keep() for name in ("Advantages", "Learn", "Publish")}
    flow = source(Count(2, lambda n: Item(n, 5)), name="Read")
    for name, operator in operators.items():
        flow = flow.then(operator, at=place, name=name)
    plan = Plan("p", flow)
    executor = Executor(plan, hooks=[log])
    executor.run_sync()
    assert [[call.operator for call in calls] for calls in place.prepared] == [list(operators.values())]
    assert place.calls == [1, 1]
    meters = executor.meters()
    for stage in ("Advantages", "Learn", "Publish"):
        assert meters[f"p/{stage}"]["items"] == 2
        assert meters[f"p/{stage}"]["rows"] == 10
        assert meters[f"p/{stage}"]["busy_s"] == 0.5
        assert log.events.count(("before", f"p/{stage}", 1)) == log.events.count(("after", f"p/{stage}", 1)) == 2


def test_stages_of_other_places_and_after_a_buffer_are_calls_of_their_own() -> None:
    one, two = FakePlace("one"), FakePlace("two")
    flow = source(Count(1)).then(Keep(), at=one, name="a").then(Keep(), at=two, name="b").then(Keep(), at=two, name="c")
    assert outputs(Plan("p", flow.queue(1).then(Keep(), at=two, name="d"))) == [1]
    assert [len(calls) for calls in one.prepared + two.prepared] == [1, 2, 1]


def test_all_that_waits_goes_in_one_call() -> None:
    place = FakePlace("replay")
    kept = Keep()
    assert outputs(Plan("p", source(Count(9)).queue(4).then(kept, at=place))) == list(range(1, 10))
    assert kept.seen == list(range(1, 10))
    assert max(place.calls) > 1
    assert max(place.calls) <= 4


def test_an_error_at_a_place_names_the_stage_that_raised() -> None:
    place = FakePlace("learner")
    flow = source(Count(3), name="Read").then(Keep(), at=place, name="Advantages")
    flow = flow.then(Picky(fail_on=2), at=place, name="Learn").then(Keep())
    with pytest.raises(StageFailed) as caught:
        Executor(Plan("adversary", flow)).run_sync()
    assert str(caught.value).splitlines() == [
        "in stage 'Learn' of plan 'adversary': Read -> Advantages -> Learn -> Keep",
        "ValueError: bad item",
    ]
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_source_at_a_place_ends_there() -> None:
    assert outputs(Plan("p", source(Count(3), at=FakePlace("replay")))) == [1, 2, 3]


def test_a_place_that_loses_items_is_found_out() -> None:
    class Loses(FakePlace):
        def prepare(self, calls: Any) -> Any:
            return lambda items: Outcome([], [])

    with pytest.raises(StageFailed, match="its place returned 0 outputs for 1 items"):
        Executor(Plan("p", source(Count(3)).then(Keep(), at=Loses("learner"), name="Learn"))).run_sync()


# -- what an operator is handed ---------------------------------------------------------------------------------


def both(item: Any, at: Any) -> Any:
    return item, at


def alone(item: Any) -> Any:
    return item


@pytest.mark.parametrize("place", [None, FakePlace("learner")])
def test_an_operator_of_two_parameters_is_handed_what_it_runs_at(place: FakePlace | None) -> None:
    class Learner:
        name = "prey"

        def __init__(self) -> None:
            self.place = place

    learner = Learner()
    assert outputs(Plan("p", source(Count(1)).then(both, at=learner))) == [(1, learner)]
    assert outputs(Plan("p", source(Count(1)).then(alone, at=learner))) == [1]
    given = iter([7])
    assert outputs(Plan("p", source(lambda at: (next(given), at), at=learner))) == [(7, learner)]


def test_parameters_with_defaults_are_the_operators_own() -> None:
    def scaled(item: int, factor: int = 10) -> int:
        return item * factor

    assert outputs(Plan("p", source(Count(2)).then(scaled, at=FakePlace("learner")))) == [10, 20]
    assert outputs(Plan("p", source(Count(2)).then(functools.partial(scaled, factor=3)))) == [3, 6]
    assert outputs(Plan("p", source(Count(2)).then(str))) == ["1", "2"]


class Scales:
    """An operator of two parameters, as an object."""

    def __call__(self, item: int, at: FakePlace) -> str:
        return f"{item} at {at.name}"


def test_a_call_is_sent_as_a_value_and_arrives_with_what_it_runs_at() -> None:
    flow = source(Count(1)).then(Scales(), at=FakePlace("learner"))
    assert flow.call is not None
    there = pickle.loads(pickle.dumps(flow.call))  # noqa: S301  our own, a moment ago
    assert there(3) == "3 at learner"
    assert there.traits == flow.traits


def test_traits_are_those_of_the_class_or_those_given_to_the_stage() -> None:
    class Publishes(Keep):
        traits = Traits(publishes=True)

    flow = source(Count(1))
    assert flow.then(Publishes()).traits.publishes
    assert flow.then(alone, traits=Traits(publishes=True)).traits.publishes
    assert not flow.then(alone).traits.publishes
    assert flow.then(Scales(), at=FakePlace("learner")).traits.accepts is int
    assert flow.then(Scales(), at=FakePlace("learner")).traits.emits is str
    typed = Traits(accepts=lambda at: at.kind)
    assert flow.then(alone, traits=typed).traits.accepts is Any


@pytest.mark.parametrize(
    ("flow", "problem"),
    [
        (
            source(Count(1)).then(both, name="Both"),
            "stage 'Both' of plan 'p' has nothing to run at, but its operator takes (item, at); say at=learner or "
            "at=replay",
        ),
        (
            source(Count(1)).then(lambda item, at, factor: item, at=FakePlace("x"), name="Three"),
            "stage 'Three' of plan 'p' hands its operator an item, or an item and what it runs at, but that takes "
            "(item, at, factor); give the other parameters defaults, or bind them with functools.partial",
        ),
        (
            source(Count(1)).then(lambda: 1, name="None"),
            "stage 'None' of plan 'p' hands its operator an item, or an item and what it runs at, but that takes (); "
            "give the other parameters defaults, or bind them with functools.partial",
        ),
        (
            source(lambda item, at: item, at=FakePlace("x"), name="Two"),
            "stage 'Two' of plan 'p' hands its operator nothing or what it runs at, but that takes (item, at); give "
            "the other parameters defaults, or bind them with functools.partial",
        ),
        (
            source(Count(1)).then(lambda item, *, factor: item, name="Named"),
            "stage 'Named' of plan 'p' hands its operator an item, or an item and what it runs at, but that takes "
            "(item, factor); give the other parameters defaults, or bind them with functools.partial",
        ),
        (
            source(Count(1)).then(alone, at="learner", name="Text"),
            "stage 'Text' of plan 'p' is to run at 'learner', which has no `name` and no `place`; give it a learner or "
            "a replay",
        ),
        (
            source(Count(1)).then(
                alone, at=5, name="Learn", traits=Traits(updates=True, accepts=lambda learner: learner.trains_on)
            ),
            "stage 'Learn' of plan 'p' is to run at 5, which has no `name` and no `place`; give it a learner or a "
            "replay",
        ),
        (
            source(Count(1)).then(5, name="Five"),
            "stage 'Five' of plan 'p' has the operator 5, which is not callable; give it a function",
        ),
    ],
)
def test_a_stage_that_cannot_call_its_operator_says_so_before_anything_runs(flow: Any, problem: str) -> None:
    assert problems(Plan("p", flow)) == [problem]
