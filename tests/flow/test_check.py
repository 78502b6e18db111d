"""check(): every problem has its own sentence, says where and what to do, and all come at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

import marlflow as mf
from marlflow.flow import Executor, Feed, RoundPace, Together, together
from tests.flow.fakes import Batches, FakePlace, Item, Keep, problems


class Rows(Item):
    """Rows as they come."""


class Estimated(Rows):
    """Rows with advantages."""

    made_from: ClassVar[Mapping[str, str]] = {"Rows": "Advantages(learner)"}


def read() -> Rows:
    return Rows()


def learn(batch: Estimated) -> int:
    return 1


def insert(batch: Rows) -> int:
    return 1


def same(item: Any) -> Any:
    return item


def nothing() -> Any:
    return None


class Split:
    """Routes nowhere."""

    def __call__(self, item: Any) -> list[tuple[str, Any]]:
        return []


def _paced(pace: Any, a: mf.Flow[Any], b: mf.Flow[Any]) -> mf.Plan:
    return mf.Plan("p", b, {"a": a}, pace)


def test_neighbors_whose_types_differ_with_the_stage_that_would_bridge_them() -> None:
    assert problems(mf.Plan("p", mf.source(read).then(learn))) == [
        "stage 'learn' of plan 'p' expects Estimated, but 'read' gives Rows; put Advantages(learner) between them"
    ]


def test_a_stage_that_gets_what_the_next_one_needs_is_to_say_that_it_returns_it() -> None:
    def estimate(rows: Rows) -> Estimated:
        return Estimated()

    def scaled(rows: Rows) -> Rows:
        return rows

    assert problems(mf.Plan("p", mf.source(read).then(estimate).then(scaled).then(learn))) == [
        "stage 'learn' of plan 'p' expects Estimated, but 'scaled' gives Rows, by its annotation; if it returns the "
        "Estimated that it gets, annotate it so"
    ]


def test_neighbors_are_compared_through_forks_queues_and_merges() -> None:
    a, b = mf.source(read).fork(2, capacity=1)
    flow = mf.merge(mf.Freely(), a=a.queue(2), b=b).then(learn)
    assert set(problems(mf.Plan("p", flow))) == {
        "stage 'learn' of plan 'p' expects Estimated, but 'read' gives Rows; put Advantages(learner) between them"
    }


def test_a_gather_gives_and_takes_what_its_add_says() -> None:
    class Pairs:
        def add(self, rows: Rows) -> Sequence[int]:
            return []

    assert problems(mf.Plan("p", mf.source(read).gather(Pairs()).then(insert))) == [
        "stage 'insert' of plan 'p' expects Rows, but 'Pairs' gives int"
    ]


def test_awaitable_results_are_taken_as_what_they_hold() -> None:
    async def later() -> Rows:
        return Rows()

    assert problems(mf.Plan("p", mf.source(later).then(insert))) == []


@pytest.mark.parametrize(
    ("make", "what"), [(lambda flow: flow.fork(2)[0], "fork 'fork'"), (lambda flow: flow.queue(), "queue 'queue'")]
)
def test_a_buffer_without_capacity(make: Callable[[mf.Flow[Any]], mf.Flow[Any]], what: str) -> None:
    found = problems(mf.Plan("p", make(mf.source(read))))
    assert f"{what} of plan 'p' has no capacity: say how many items it may hold" in found


def test_a_buffer_that_holds_nothing() -> None:
    assert problems(mf.Plan("p", mf.source(read).queue(0))) == [
        "queue 'queue' of plan 'p' has a capacity of 0: it would block for every input; give at least 1"
    ]


def test_sizes_and_shares_that_are_no_whole_numbers() -> None:
    half: Any = 2.5
    assert problems(mf.Plan("p", mf.source(read).queue(half))) == [
        "queue 'queue' of plan 'p' has a capacity of 2.5, which is no whole number"
    ]
    plan = _paced(mf.InTurn(a=half, output=1), mf.source(read), mf.source(nothing, name="other"))
    assert any("InTurn gives 'a' a share of 2.5, which is no whole number" in problem for problem in problems(plan))


def test_a_gather_that_cannot_add_and_a_split_that_cannot_be_called() -> None:
    wrong: Any = 3
    assert problems(mf.Plan("p", mf.source(read).gather(wrong, name="Three"))) == [
        "stage 'Three' of plan 'p' gathers with 3, which has no method `add(item)`"
    ]
    assert problems(mf.Plan("p", mf.source(read).split(wrong, ["a"], name="Three")["a"])) == [
        "stage 'Three' of plan 'p' has the operator 3, which is not callable; give it a function"
    ]


def test_a_buffer_that_does_what_nobody_knows_when_full() -> None:
    full: Any = "drop_newest"
    assert problems(mf.Plan("p", mf.source(read).queue(1, full))) == [
        "queue 'queue' of plan 'p' is to 'drop_newest' when full; choose 'wait' or 'drop_oldest'"
    ]


def test_several_flows_without_a_pace() -> None:
    plan = _paced(None, mf.source(read), mf.source(nothing, name="other"))
    assert problems(plan) == ["plan 'p' has several flows and no pace: say Freely() or InTurn(a=..., output=...)"]


def test_a_merge_without_a_pace() -> None:
    flow = mf.merge(a=mf.source(read), b=mf.source(nothing, name="other"))
    assert problems(mf.Plan("p", flow)) == [
        "merge 'merge' of plan 'p' has no pace: say Freely() or InTurn(a=..., b=...)"
    ]


def test_two_stages_of_one_name() -> None:
    assert problems(mf.Plan("p", mf.source(read).then(same).then(same))) == [
        "plan 'p' has 2 stages named 'same': tell them apart with name=..."
    ]


def test_two_plans_of_one_name() -> None:
    one, two = (mf.Plan("p", mf.source(read, name=name)) for name in ("first", "second"))
    plan = Together(one.output, (one, two), "lockstep", frozenset())
    assert problems(plan) == ["2 plans are named 'p': give each a name of its own"]


def test_a_plan_named_like_what_all_share() -> None:
    plan = together(mf.source(read), Split(), {"rollouts": lambda flow: mf.Plan("ppo", flow)}, {"rollouts": Feed(1)})
    assert problems(plan) == ["a plan is named 'rollouts', as what all plans share is: give it another name"]


class Learns:
    """Updates the learner that it runs at."""

    traits = mf.Traits(updates=True)

    def __call__(self, item: Any) -> Any:
        return item


def test_a_learner_updated_by_two_stages() -> None:
    prey = FakePlace("prey")
    flow = mf.source(read).then(Learns(), at=prey, name="Learn").then(Learns(), at=prey, name="Learn again")
    assert problems(mf.Plan("p", flow)) == [
        "learner 'prey' is updated by 'Learn' of plan 'p' and by 'Learn again' of plan 'p': "
        "one learner is updated by one stage"
    ]


class LearnsGroups:
    """Updates loss groups of the learner that it runs at."""

    def __init__(self, *groups: str) -> None:
        self.traits = mf.Traits(updates=True, groups=groups)

    def __call__(self, item: Any) -> Any:
        return item


def grouped(*groups: str) -> FakePlace:
    """A learner that may be trained group by group."""
    learner = FakePlace("prey")
    learner.loss_groups = dict.fromkeys(groups, int)  # type: ignore[attr-defined]
    return learner


def test_two_stages_may_update_loss_groups_of_their_own() -> None:
    prey = grouped("actor", "baseline", "critics")
    flow = mf.source(read).then(LearnsGroups("actor", "baseline"), at=prey, name="Learn")
    assert problems(mf.Plan("p", flow.then(LearnsGroups("critics"), at=prey, name="Learn critics"))) == []
    overlap = flow.then(LearnsGroups("critics", "actor"), at=prey, name="Learn again")
    both = "learner 'prey' is updated by 'Learn' of plan 'p' and by 'Learn again' of plan 'p'"
    assert problems(mf.Plan("p", overlap)) == [f"{both}, of which several train 'actor': give each its own groups"]
    assert problems(mf.Plan("p", flow.then(Learns(), at=prey, name="Learn again"))) == [
        f"{both}: one learner is updated by one stage; or say which loss groups each trains, by Learn(groups=...)"
    ]


def test_loss_groups_of_one_learner_are_not_for_two_plans() -> None:
    prey = grouped("actor", "critics")
    plans = {
        "one": lambda flow: mf.Plan("one", flow.then(LearnsGroups("actor"), at=prey, name="Learn")),
        "two": lambda flow: mf.Plan("two", flow.then(LearnsGroups("critics"), at=prey, name="Learn")),
    }
    feeds = dict.fromkeys(plans, Feed(1))
    assert problems(together(mf.source(read), Split(), plans, feeds)) == [
        "learner 'prey' is updated by 'Learn' of plan 'one' and by 'Learn' of plan 'two': "
        "one learner is updated by one plan"
    ]


def test_loss_groups_that_the_learner_does_not_have() -> None:
    subject = "stage 'Learn' of plan 'p' trains"
    unknown = mf.source(read).then(LearnsGroups("actor", "critic"), at=grouped("actor", "critics"), name="Learn")
    assert problems(mf.Plan("p", unknown)) == [
        f"{subject} the loss groups critic of learner 'prey', which has actor, critics"
    ]
    undeclared = mf.source(read).then(LearnsGroups("actor"), at=FakePlace("prey"), name="Learn")
    assert problems(mf.Plan("p", undeclared)) == [
        f"{subject} the loss groups actor of learner 'prey', which declares none: "
        "name them in Capabilities(loss_groups=...)"
    ]
    empty = mf.source(read).then(LearnsGroups(), at=grouped("actor"), name="Learn")
    assert problems(mf.Plan("p", empty)) == [f"{subject} no loss group: leave groups out, or name some"]


def test_a_branch_that_nobody_takes() -> None:
    assert problems(mf.Plan("p", mf.source(read).fork(2, capacity=1)[0])) == [
        "branch 1 of 'fork' in plan 'p' is used by no stage: it would fill up and block for every input; "
        "use it, or make one branch fewer"
    ]
    assert problems(mf.Plan("p", mf.source(read).split(Split(), ["x", "y"])["x"])) == [
        "branch 'y' of 'Split' in plan 'p' is used by no stage: it would fill up and block for every input; "
        "use it, or make one branch fewer"
    ]


def test_a_branch_taken_twice_under_two_names() -> None:
    branch = mf.source(read).split(Split(), ["x"])["x"]
    plan = mf.Plan("p", branch.named("one"), {"other": branch.named("two")}, mf.Freely())
    assert problems(plan) == [
        "branch 'x' of 'Split' in plan 'p' is taken 2 times: give each its own with .fork(2, capacity=...)"
    ]


def test_a_flow_taken_twice() -> None:
    flow = mf.source(read)
    assert problems(_paced(mf.Freely(), flow.then(Keep()), flow)) == [
        "the flow after 'read' of plan 'p' is taken 2 times: give each its own with .fork(2, capacity=...)"
    ]


def test_experience_that_no_plan_takes() -> None:
    plan = together(mf.source(read), Split(), {"p": lambda flow: mf.Plan("p", mf.source(nothing))}, {"p": Feed(1)})
    assert problems(plan) == ["the flow after 'read' of plan 'rollouts' is used by no stage; give it to a plan"]


def test_a_share_of_nothing() -> None:
    plan = _paced(mf.InTurn(a=0, output=1), mf.source(read), mf.source(nothing))
    assert problems(plan) == ["plan 'p': InTurn gives 'a' a share of 0: it would block for ever; give at least 1"]


def test_a_ratio_between_other_sides() -> None:
    plan = _paced(mf.InTurn(store=1, output=1), mf.source(read), mf.source(nothing))
    assert problems(plan) == ["plan 'p': InTurn is between 'output' and 'store', but the flows are 'a' and 'output'"]


def test_unequal_shares_of_one_fork_that_waits() -> None:
    a, b = mf.source(read).fork(2, capacity=3)
    assert problems(_paced(mf.InTurn(a=2, output=1), a, b)) == [
        "plan 'p': the sides of InTurn(a=2, output=1) are branches of one fork, which bring item for item the same: "
        "it would block for every input; give equal shares, or drop_oldest on the fork"
    ]
    assert problems(_paced(mf.InTurn(a=2, output=2), a, b)) == []


def test_agent_steps_of_items_without_rows() -> None:
    plan = _paced(mf.InTurn(a=mf.AgentSteps(4), output=1), mf.source(read).then(insert), mf.source(nothing))
    assert problems(plan) == [
        "plan 'p': 'a' is paced in agent steps, but its items (int) have no `rows`: it would earn no turn for any "
        "input; end it with a stage that counts, such as Insert"
    ]


def test_two_sides_in_agent_steps() -> None:
    plan = _paced(mf.InTurn(a=mf.AgentSteps(4), output=mf.AgentSteps(4)), mf.source(read), mf.source(nothing))
    assert problems(plan) == ["plan 'p': InTurn can measure one side in agent steps, not several"]


def test_a_gather_that_may_give_several_in_a_paced_side() -> None:
    class Regroup:
        def add(self, item: Any) -> Sequence[Any]:
            return []

    plan = _paced(mf.InTurn(a=1, output=1), mf.source(read).gather(Regroup()), mf.source(nothing))
    assert problems(plan) == [
        "plan 'p': stage 'Regroup' of side 'a' may give several items for one, which breaks the ratio; put it before "
        "the fork or queue, or give its operator Traits(at_most_one=True)"
    ]
    assert (
        problems(_paced(mf.InTurn(a=1, output=1), mf.source(read).gather(Regroup()).queue(1), mf.source(nothing))) == []
    )
    assert problems(_paced(mf.InTurn(a=1, output=1), mf.source(read).gather(Batches(2)), mf.source(nothing))) == []


def test_what_a_split_routes_is_what_its_pairs_say() -> None:
    def route(rows: Rows) -> Iterator[tuple[str, Rows]]:
        yield "x", rows

    assert problems(mf.Plan("p", mf.source(read).split(route, ["x"])["x"].then(learn))) == [
        "stage 'learn' of plan 'p' expects Estimated, but 'route' gives Rows; put Advantages(learner) between them"
    ]


def _on_policy(build: Callable[[mf.Flow[Any]], mf.Plan], rounds: RoundPace = "lockstep") -> Together:
    return together(mf.source(read), Split(), {"prey": build}, {"prey": Feed(1)}, rounds)


class Publish:
    """Publishes."""

    traits = mf.Traits(publishes=True, max_staleness=0)

    def __call__(self, item: Any) -> Any:
        return item


def test_an_on_policy_plan_that_never_publishes() -> None:
    assert problems(_on_policy(lambda flow: mf.Plan("ppo", flow.then(same), waits_for_rounds=True))) == [
        "plan 'prey' is on-policy but never publishes: from its second update on its rows would all be too old; end it "
        "with .then(Publish(), at=learner)"
    ]


def test_rounds_that_overlap_the_learning_of_a_plan_that_allows_no_staleness() -> None:
    def build(flow: mf.Flow[Any]) -> mf.Plan:
        return mf.Plan("ppo", flow.then(Publish()), waits_for_rounds=True)

    assert problems(_on_policy(build)) == []
    assert problems(_on_policy(build, "overlap")) == [
        "rounds overlap learning, so rows are a version old, but stage 'Publish' of plan 'prey' has max_staleness 0; "
        "give it 1 or more, or choose rollouts.pace=lockstep"
    ]


def test_a_plan_that_waits_for_rounds_and_never_rests() -> None:
    def build(flow: mf.Flow[Any]) -> mf.Plan:
        fresh = mf.merge(mf.Freely(), fresh=flow, old=mf.source(nothing, name="Draw"))
        return mf.Plan("ppo", fresh.then(Publish()), waits_for_rounds=True)

    assert problems(_on_policy(build)) == [
        "plan 'prey' waits for rounds, but its source 'Draw' runs freely: the plan would never come to rest, and no "
        "round begin; give them a ratio with InTurn"
    ]


def test_all_problems_come_at_once_and_before_anything_runs() -> None:
    ran: list[int] = []
    flow = mf.source(lambda: ran.append(1), name="one").then(same).then(same).queue()
    plan = _paced(mf.InTurn(a=0, output=1), flow, mf.source(read).then(learn))
    with pytest.raises(mf.PlanInvalid) as caught:
        Executor(plan)
    assert str(caught.value).splitlines() == [
        "4 problems in this plan:",
        "  1. plan 'p' has 2 stages named 'same': tell them apart with name=...",
        "  2. stage 'learn' of plan 'p' expects Estimated, but 'read' gives Rows; put Advantages(learner) between them",
        "  3. queue 'queue' of plan 'p' has no capacity: say how many items it may hold",
        "  4. plan 'p': InTurn gives 'a' a share of 0: it would block for ever; give at least 1",
    ]
    assert ran == []
