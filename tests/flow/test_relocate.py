"""Stages moved to where the experience is made, or aside: what comes out is the same, or the plan says why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.flow import Flow, Plan, source
from marlflow.flow.relocate import RanAhead, Where, relocated
from tests.flow.fakes import Batches, Count, FakePlace, Keep, outputs, problems

LEARNER, WORKERS, DRIVER = FakePlace("learner"), FakePlace("workers"), FakePlace("driver")


class Mark:
    """Writes its name behind what came; `by_segment` or `passes_segments` is what it says of itself."""

    def __init__(self, name: str, place: Any = LEARNER, **says: Any) -> None:
        self.name, self.place = name, place
        self.__dict__.update(says)

    def __call__(self, item: str) -> str:
        return item + self.name


class Emits(Mark):
    """One that makes numbers of texts."""

    def __call__(self, item: str) -> int:  # type: ignore[override]
        return len(item)


def takes_numbers(item: int) -> int:
    return item


def moved(
    stages: list[Mark], wishes: Mapping[str, Where], gather: bool = False, built: list[Mark] | None = None
) -> Plan:
    """A plan of those stages, in a row behind a queue, and relocated; `built` are they as built elsewhere."""

    def plan(own: list[Mark]) -> Plan:
        flow: Flow[Any] = experience
        for stage in own:
            flow = flow.then(stage)
        if gather:
            flow = flow.gather(Batches(2), name="Gather")
        return Plan("p", flow)

    experience = source(Count(4, str), name="Read").queue(2)
    there: dict[Where, Plan] = {"worker": plan(built or stages), "driver": plan(built or stages)}
    return relocated(plan(stages), experience, wishes, there)


def names(plan: Plan) -> list[str]:
    return [stage.name for stage in plan.stages()]


@given(
    kinds=st.lists(st.sampled_from(["by_segment", "passes_segments", "other"]), min_size=1, max_size=5),
    asked=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_a_stage_comes_ahead_of_those_that_pass_segments_on_and_of_no_others(
    kinds: list[str], asked: list[bool]
) -> None:
    stages = [Mark(f"s{number}", **{kind: True}) for number, kind in enumerate(kinds)]
    wishes: dict[str, Where] = {stage.name: "worker" for stage, ask in zip(stages, asked, strict=False) if ask}
    plan = moved(stages, wishes)
    allowed = all(
        kinds[at] == "by_segment"
        and all(
            kind == "passes_segments" or stage.name in wishes for kind, stage in zip(kinds[:at], stages, strict=False)
        )
        for at, stage in enumerate(stages)
        if stage.name in wishes
    )
    assert bool(plan.unmet) != allowed
    rest = [stage.name for stage in stages if stage.name not in wishes]
    order = [*wishes, *rest] if allowed else [stage.name for stage in stages]
    assert names(plan) == ["Read", "queue", *order]


def test_what_ran_ahead_only_hands_on_and_is_asked_for_its_times_at_its_place() -> None:
    here, there = Mark("a", by_segment=True), Mark("a", WORKERS, by_segment=True)
    plan = moved([Mark("pass", passes_segments=True), here], {"a": "worker"}, built=[Mark("pass"), there])
    (stage,) = [stage for stage in plan.stages() if stage.name == "a"]
    assert isinstance(stage.operator, RanAhead)
    assert stage.operator.operator is there
    assert stage.operator.place is WORKERS
    assert problems(plan) == []
    assert outputs(plan) == [f"{number}pass" for number in range(1, 5)]
    assert "[a] at workers → [pass] at learner" in str(plan)


@given(position=st.integers(0, 3))
def test_aside_a_stage_stays_in_its_row_with_the_operator_of_there(position: int) -> None:
    stages, there = ([Mark(name, place, by_segment=False) for name in "abcd"] for place in (LEARNER, DRIVER))
    wish = "abcd"[position]
    plan = moved(stages, {wish: "driver"}, built=there)
    assert names(plan) == ["Read", "queue", *"abcd"]
    places = {stage.name: stage.operator.place for stage in plan.stages() if stage.name in "abcd"}
    assert places == {name: DRIVER if name == wish else LEARNER for name in "abcd"}
    assert outputs(plan) == [f"{number}abcd" for number in range(1, 5)]


def test_types_are_those_of_the_plan_as_it_was_written() -> None:
    experience = source(Count(3, str), name="Read").queue(2)
    written = Plan("p", experience.then(Mark("pass", passes_segments=True)).then(Emits("n", by_segment=True)))
    plan = Plan("p", written.output.then(takes_numbers))
    assert problems(plan) == []
    found = relocated(plan, experience, {"n": "worker"}, {"worker": plan})
    assert problems(found) == []
    assert names(found) == ["Read", "queue", "n", "pass", "takes_numbers"]


def test_the_plan_keeps_all_else() -> None:
    experience = source(Count(3, str), name="Read").queue(2)
    store = experience.then(Mark("window", by_segment=True)).then(Keep())
    train = source(Count(3), name="Draw").then(Keep(), name="Learn")
    plan = Plan("dqn", train, {"store": store}, waits_for_rounds=True, title="title")
    found = relocated(plan, experience, {"window": "worker"}, {"worker": plan})
    assert (found.name, found.waits_for_rounds, found.title) == ("dqn", True, "title")
    assert [stage.name for stage in found.also["store"].upstream()] == ["Read", "queue", "window", "Keep"]
    assert [stage.name for stage in found.output.upstream()] == ["Draw", "Learn"]


def test_nothing_comes_ahead_of_a_fork_or_of_what_did_not_come_from_the_experience() -> None:
    experience = source(Count(3, str), name="Read").queue(2)
    one, other = experience.fork(2, capacity=1)
    plan = Plan("p", one.then(Mark("a", by_segment=True)), {"other": other.then(Keep())})
    (reason,) = relocated(plan, experience, {"a": "worker"}, {"worker": plan}).unmet
    assert "stands behind 'fork[0]', which may change what it needs" in reason
    drawn = Plan("p", source(Mark("Draw"), name="Draw").then(Mark("a", by_segment=True)), {"other": experience})
    (reason,) = relocated(drawn, experience, {"a": "worker"}, {"worker": drawn}).unmet
    assert "stands behind 'Draw'" in reason


@pytest.mark.parametrize(
    ("says", "where", "reason"),
    [
        ({}, "worker", "does not say that it may run apart"),
        ({}, "driver", "does not say that it may run apart"),
        ({"by_segment": False}, "worker", "it needs whole batches, not fragments"),
        ({"by_segment": True, "updates": "prey"}, "driver", "it updates learner 'prey'"),
        ({"by_segment": True, "publishes": True}, "worker", "it hands out its learner's weights"),
        ({"by_segment": True, "stays": "it is shy"}, "worker", "it is shy"),
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
    free = moved([Mark("a", place=None)], {"a": "driver"})
    assert problems(free) == []
    assert outputs(free) == ["1a", "2a", "3a", "4a"]
