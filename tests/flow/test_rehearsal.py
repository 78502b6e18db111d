"""A plan is tried by one item through every stage, whatever its paces, capacities and gathers would have waited for."""

import asyncio

from marlflow.flow import AgentSteps, AtMost, Flow, InTurn, Plan, merge, source
from marlflow.flow.rehearsal import FailedStage, rehearse
from tests.flow.fakes import Batches, Count, Item, Keep


class Held(Batches):
    """Emits its items when no more come."""

    def rest(self) -> list[list[object]]:
        held, self.held = self.held, []
        return [held] if held else []


def _refuse(item: object) -> object:
    raise ValueError(f"no {item}")


def _tried(plan: Plan, experience: Flow[object]) -> tuple[str, object, str] | None:
    broken = rehearse(plan, experience)
    if broken is None:
        return None
    assert isinstance(broken, FailedStage)
    return broken.failure.stage, broken.given, str(broken.failure.__cause__)


def test_one_item_comes_through_gathers_that_hold_it_and_forks_and_queues() -> None:
    left, right, experience = Keep(), Keep(), source(Count(3))
    first, second = experience.gather(Held(100)).queue(1).fork(2, capacity=1)
    plan = Plan("both", output=first.then(left), also={"other": second.then(right, name="Right")})
    assert _tried(plan, experience) is None
    assert (left.seen, right.seen) == ([[1]], [[1]])


def test_other_sources_are_asked_once_after_the_experience_however_far_their_pace_would_let_them() -> None:
    order: list[str] = []
    stored, drawn = Keep(), Keep()
    experience = source(Count(None, lambda number: order.append("experience") or Item(number)), name="experience")
    draws = source(Count(None, lambda number: order.append("draw") or Item(number)), name="draw")
    pace = InTurn(store=AgentSteps(8, starts=1000), output=1)
    plan = Plan("replay", output=draws.then(drawn), also={"store": experience.then(stored)}, pace=pace)
    assert _tried(plan, experience) is None
    assert order == ["experience", "draw"]
    assert (stored.seen, drawn.seen) == ([Item(1)], [Item(1)])


def test_a_merge_hands_on_the_side_that_it_would_in_a_run() -> None:
    experience, seen = source(Count(1), name="experience"), Keep()
    draw = source(Count(None, lambda number: Item(-number)), name="draw")
    merged = merge(AtMost(store=AgentSteps(8), draw=1), store=experience, draw=draw).only("draw")
    assert _tried(Plan("ape", output=merged.then(seen)), experience) is None
    assert seen.seen == [Item(-1)]


def test_the_first_stage_that_raises_is_named_with_what_it_was_given() -> None:
    experience, after = source(Count(1)), Keep()
    plan = Plan("broken", output=experience.then(_refuse, name="Refuse").then(after))
    assert _tried(plan, experience) == ("Refuse", 1, "no 1")
    assert after.seen == []


def test_a_gather_that_raises_as_it_hands_over_is_named_too() -> None:
    class Torn(Held):
        def rest(self) -> list[list[object]]:
            raise ValueError("torn")

    experience = source(Count(1))
    assert _tried(Plan("broken", output=experience.gather(Torn(9))), experience) == ("Torn", None, "torn")


def test_what_is_awaited_is_waited_for_in_a_running_loop_too() -> None:
    async def later(item: int) -> int:
        await asyncio.sleep(0)
        return 2 * item

    async def in_a_notebook() -> list[object]:
        experience, seen = source(Count(1)), Keep()
        assert rehearse(Plan("later", output=experience.then(later).then(seen)), experience) is None
        return seen.seen

    assert asyncio.run(in_a_notebook()) == [2]
