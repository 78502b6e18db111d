"""Stages moved to the workers or to the driver: the outputs are the same, or the plan says why it cannot be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.flow import Flow, Plan, Traits, source
from marlflow.flow.relocate import Where, relocated
from tests.flow.fakes import Batches, Count, FakePlace, Keep, outputs, problems

LEARNER, WORKERS, DRIVER = FakePlace("learner"), FakePlace("workers"), FakePlace("driver")


class Mark:
    """Appends its name and the name of its place to the item; `traits` are its traits."""

    def __init__(self, name: str, **traits: Any) -> None:
        self.name, self.traits = name, Traits(**traits)

    def __call__(self, item: str, at: Any) -> str:
        return f"{item} {self.name}@{at.name}"


class Emits(Mark):
    """One that makes numbers of texts."""

    def __call__(self, item: str, at: Any) -> int:  # type: ignore[override]
        return len(item)


def takes_numbers(item: int) -> int:
    return item


def after(flow: Flow[Any], *stages: Mark) -> Flow[Any]:
    """The flow with these stages at the learner."""
    for stage in stages:
        flow = flow.then(stage, at=LEARNER, name=stage.name)
    return flow


def stand_in(at: Any, where: Where) -> Any:
    assert at in (LEARNER, None)
    return WORKERS if where == "worker" else DRIVER


def moved(stages: list[Mark], wishes: Mapping[str, Where], gather: bool = False) -> Plan:
    """A plan of these stages, in a row after a queue, and relocated."""
    experience: Flow[Any] = source(Count(4, str), name="Read").queue(2)
    flow = after(experience, *stages)
    plan = Plan("p", flow.gather(Batches(2), name="Gather") if gather else flow)
    return relocated(plan, experience, wishes, stand_in)


def names(plan: Plan) -> list[str]:
    return [stage.name for stage in plan.stages()]


@given(
    kinds=st.lists(st.sampled_from(["movable", "keeps_segments", "other"]), min_size=1, max_size=5),
    asked=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_a_stage_comes_ahead_of_those_that_pass_segments_on_and_of_no_others(
    kinds: list[str], asked: list[bool]
) -> None:
    says: dict[str, dict[str, Any]] = {"movable": {"movable": "fragments"}, "keeps_segments": {"keeps_segments": True}}
    stages = [Mark(f"s{number}", **says.get(kind, {})) for number, kind in enumerate(kinds)]
    wishes: dict[str, Where] = {stage.name: "worker" for stage, ask in zip(stages, asked, strict=False) if ask}
    plan = moved(stages, wishes)
    allowed = all(
        kinds[at] == "movable"
        and all(
            kind == "keeps_segments" or stage.name in wishes for kind, stage in zip(kinds[:at], stages, strict=False)
        )
        for at, stage in enumerate(stages)
        if stage.name in wishes
    )
    assert bool(plan.unmet) != allowed
    rest = [stage.name for stage in stages if stage.name not in wishes]
    order = [*wishes, *rest] if allowed else [stage.name for stage in stages]
    assert names(plan) == ["Read", "queue", *order]


def test_what_ran_ahead_only_hands_on_and_is_asked_for_its_times_at_its_place() -> None:
    plan = moved([Mark("pass", keeps_segments=True), Mark("a", movable="fragments")], {"a": "worker"})
    (stage,) = [stage for stage in plan.stages() if stage.name == "a"]
    assert stage.place is WORKERS
    assert problems(plan) == []
    assert outputs(plan) == [f"{number} pass@learner" for number in range(1, 5)]
    assert "[a: Mark] at workers → [pass: Mark] at learner" in str(plan)


@given(position=st.integers(0, 3))
def test_aside_a_stage_stays_in_its_row_and_is_handed_what_stands_for_its_learner_there(position: int) -> None:
    wish = "abcd"[position]
    plan = moved([Mark(name, movable="batches") for name in "abcd"], {wish: "driver"})
    assert names(plan) == ["Read", "queue", *"abcd"]
    places = {stage.name: stage.place for stage in plan.stages() if stage.name in "abcd"}
    assert places == {name: DRIVER if name == wish else LEARNER for name in "abcd"}
    description = " ".join(f"{name}@{'driver' if name == wish else 'learner'}" for name in "abcd")
    assert outputs(plan) == [f"{number} {description}" for number in range(1, 5)]


def test_types_are_those_of_the_plan_as_it_was_written() -> None:
    experience: Flow[Any] = source(Count(3, str), name="Read").queue(2)
    stages = Mark("pass", keeps_segments=True), Emits("n", movable="fragments")
    plan = Plan("p", after(experience, *stages).then(takes_numbers))
    assert problems(plan) == []
    found = relocated(plan, experience, {"n": "worker"}, stand_in)
    assert problems(found) == []
    assert names(found) == ["Read", "queue", "n", "pass", "takes_numbers"]


def test_the_plan_keeps_all_else() -> None:
    experience: Flow[Any] = source(Count(3, str), name="Read").queue(2)
    store = after(experience, Mark("window", movable="fragments")).then(Keep())
    train = source(Count(3), name="Draw").then(Keep(), name="Learn")
    plan = Plan("dqn", train, {"store": store}, waits_for_rounds=True, title="title")
    found = relocated(plan, experience, {"window": "worker"}, stand_in)
    assert (found.name, found.waits_for_rounds, found.title) == ("dqn", True, "title")
    assert [stage.name for stage in found.also["store"].upstream()] == ["Read", "queue", "window", "Keep"]
    assert [stage.name for stage in found.output.upstream()] == ["Draw", "Learn"]


def test_nothing_comes_ahead_of_a_fork_or_of_what_did_not_come_from_the_experience() -> None:
    experience: Flow[Any] = source(Count(3, str), name="Read").queue(2)
    one, other = experience.fork(2, capacity=1)
    mark = Mark("a", movable="fragments")
    plan = Plan("p", after(one, mark), {"other": other.then(Keep())})
    (reason,) = relocated(plan, experience, {"a": "worker"}, stand_in).unmet
    assert "comes after 'fork[0]', which may change what it needs" in reason
    drawn = Plan("p", after(source(Count(1), name="Draw"), mark), {"other": experience})
    (reason,) = relocated(drawn, experience, {"a": "worker"}, stand_in).unmet
    assert "comes after 'Draw'" in reason


@pytest.mark.parametrize(
    ("says", "where", "reason"),
    [
        ({}, "worker", "does not say that it may run apart"),
        ({}, "driver", "does not say that it may run apart"),
        ({"movable": "batches"}, "worker", "it needs whole batches, not fragments"),
        ({"movable": "fragments", "updates": True}, "driver", "it updates learner 'learner'"),
        ({"movable": "fragments", "publishes": True}, "worker", "it hands out its learner's weights"),
        ({"movable": "fragments", "unmovable_because": "it is shy"}, "worker", "it is shy"),
    ],
)
def test_reasons(says: dict[str, Any], where: Where, reason: str) -> None:
    (problem,) = problems(moved([Mark("a", **says)], {"a": where}))
    assert problem.startswith(f"plan 'p': stage 'a' cannot run on the {where}: ")
    assert reason in problem


def test_unknown_names_gathers_and_wishes_that_change_nothing() -> None:
    (problem,) = problems(moved([Mark("Advantages")], {"advantage": "learner"}))
    assert problem.endswith("it has no stage 'advantage' to run on the learner; did you mean 'Advantages'?")
    (problem,) = problems(moved([Mark("a")], {"Gather": "worker"}, gather=True))
    assert problem.endswith("it is a gather; only a then can be moved")
    experience = source(Count(2), name="Read").queue(2)
    free = relocated(Plan("p", experience.then(takes_numbers)), experience, {"takes_numbers": "driver"}, stand_in)
    assert problems(free) == []
    assert outputs(free) == [1, 2]
