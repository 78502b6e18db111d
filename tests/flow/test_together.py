"""Several plans on one stream: split by policy, queues, rounds, and plans that end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.flow import Executor, Feed, StageId, StageTimes, Together, together
from tests.flow.fakes import Batches, Count, Item, Keep, Log, outputs


def by_policy(round_number: int) -> list[tuple[str, int]]:
    return [("prey", round_number), ("predator", round_number), ("prey", round_number)]


def _slow(turns: int, publishes: bool = True) -> Any:
    async def learn(item: Any) -> Any:
        for _ in range(turns):
            await asyncio.sleep(0)
        return item

    learn.traits = mf.Traits(publishes=publishes)  # type: ignore[attr-defined]
    return learn


def _plans(
    prey: Callable[[mf.Flow[Any]], mf.Plan], predator: Callable[[mf.Flow[Any]], mf.Plan], **more: Any
) -> Together:
    feeds = {"prey": more.pop("feed", Feed(4)), "predator": more.pop("other_feed", Feed(2))}
    return together(
        mf.source(Count(more.pop("last", 6)), name="Collect"),
        by_policy,
        {"prey": prey, "predator": predator},
        feeds,
        more.pop("rounds", "lockstep"),
    )


def _simple(flow: mf.Flow[Any]) -> mf.Plan:
    return mf.Plan("simple", flow.then(_slow(2), name="learn"))


def test_each_plan_gets_its_policys_part_and_reports_under_its_name() -> None:
    plan = _plans(_simple, _simple, last=3)
    assert [one.name for one in plan.plans] == ["prey", "predator"]
    assert [one.title for one in plan.plans] == ["simple", "simple"]
    assert outputs(plan, "prey") == [1, 1, 2, 2, 3, 3]
    assert outputs(_plans(_simple, _simple, last=3), "predator") == [1, 2, 3]


class AtRounds(Log):
    """Calls `look` as each round begins."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self.look, self.rounds = look, 0

    def before(self, stage: StageId, items: int) -> None:
        if stage.stage == "Collect":
            self.look()
            self.rounds += 1

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        """Nothing to see."""


@given(st.lists(st.integers(0, 6), min_size=4, max_size=4), st.integers(1, 5), st.booleans())
def test_in_lockstep_no_round_begins_before_the_plans_that_wait_have_come_to_rest(
    turns: list[int], size: int, other_is_slow: bool
) -> None:
    def on_policy(flow: mf.Flow[Any]) -> mf.Plan:
        stages = flow.gather(Batches(size)).then(_slow(turns[0]), name="a").then(_slow(turns[1]), name="b")
        return mf.Plan("ppo", stages, waits_for_rounds=True)

    def off_policy(flow: mf.Flow[Any]) -> mf.Plan:
        return mf.Plan("dqn", flow.then(_slow(30 if other_is_slow else turns[2]), name="store"))

    def look() -> None:
        held = executor.held()
        assert not any(count for stage, count in held.items() if stage.startswith("prey/")), held
        assert held["rollouts/by_policy"] == 0

    executor = Executor(_plans(on_policy, off_policy), hooks=[hook := AtRounds(look)])
    executor.run_sync()
    assert hook.rounds == 7  # six, and the one that found the end


@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.integers(0, 9))
def test_in_overlap_learning_is_at_most_one_round_behind(turns: list[int], collecting: int) -> None:
    learnt: list[int] = [0]
    behind: list[int] = []

    async def collect() -> int:
        for _ in range(collecting):
            await asyncio.sleep(0)
        return count()  # type: ignore[no-any-return]

    def end() -> int:
        if count.made == 8:
            raise StopIteration
        return 0

    def on_policy(flow: mf.Flow[Any]) -> mf.Plan:
        stages = flow.gather(Batches(2))
        for number, hops in enumerate(turns):
            stages = stages.then(_slow(hops), name=f"stage {number}")
        return mf.Plan("ppo", stages, waits_for_rounds=True)

    def look() -> None:
        behind.append(count.made - learnt[-1])

    count = Count(8)
    source_of_rounds = mf.source(lambda: end() or collect(), name="Collect")
    plan = together(
        source_of_rounds,
        by_policy,
        {"prey": on_policy, "predator": _simple},
        {"prey": Feed(4), "predator": Feed(8)},
        "overlap",
    )
    executor = Executor(plan, lambda name, item: learnt.append(item[0]) if name == "prey" else None, [AtRounds(look)])
    executor.run_sync()
    assert learnt == list(range(9))
    assert max(behind) <= 1


def test_overlap_does_overlap() -> None:
    learning: list[bool] = []

    def look() -> None:
        learning.append(executor.held()["prey/learn"] > 0)

    def on_policy(flow: mf.Flow[Any]) -> mf.Plan:
        return mf.Plan("ppo", flow.gather(Batches(2)).then(_slow(20), name="learn"), waits_for_rounds=True)

    executor = Executor(_plans(on_policy, _simple, rounds="overlap"), hooks=[AtRounds(look)])
    executor.run_sync()
    assert learning == [False, *[True] * 6]


def test_a_full_queue_slows_the_source_to_the_pace_of_its_plan() -> None:
    ahead: list[int] = []
    stored = Keep()

    def look() -> None:
        ahead.append(collect.made - len(stored.seen))

    collect = Count(30)
    plan = together(
        mf.source(collect, name="Collect"),
        lambda n: [("prey", n)],
        {"prey": lambda flow: mf.Plan("dqn", flow.then(_slow(9), name="slow").then(stored))},
        {"prey": Feed(3)},
    )
    Executor(plan, hooks=[AtRounds(look)]).run_sync()
    assert stored.seen == list(range(1, 31))
    # The queue, and one item at the slow stage; a fifth is then made and waits at the split.
    assert max(ahead) == 3 + 1


def test_a_queue_that_drops_does_not_slow_the_source_and_counts() -> None:
    executor = Executor(
        _plans(_simple, _simple, feed=Feed(1, "drop_oldest"), last=20), lambda name, item: seen.append(name)
    )
    seen: list[str] = []
    executor.run_sync()
    meter = executor.meters()["prey/queue"]
    assert seen.count("prey") + meter["dropped"] == meter["items"] == 40
    assert meter["dropped"] > 0
    assert seen.count("predator") == 20


def _dqn(flow: mf.Flow[Any]) -> mf.Plan:
    store = flow.then(lambda n: Item(n, rows=4), name="store")
    return mf.Plan(
        "dqn", mf.source(Count(None), name="draw"), {"store": store}, mf.InTurn(store=mf.AgentSteps(2), output=1)
    )


def test_a_plan_that_ends_counts_what_comes_later_and_the_others_go_on() -> None:
    seen: list[str] = []

    def look(name: str, item: int) -> None:
        seen.append(name)
        if seen.count("prey") == 5:
            executor.close_plan("prey")

    executor = Executor(_plans(_simple, _simple, last=10), look)
    executor.run_sync()
    assert seen.count("predator") == 10
    meters = executor.meters()
    assert meters["prey/learn"]["items"] + meters["prey/queue"]["dropped"] == 20
    assert meters["prey/queue"]["dropped"] > 0
    assert seen.count("prey") >= 5


@pytest.mark.parametrize(
    "pace", [mf.Freely(), mf.InTurn(store=1, output=4), mf.InTurn(store=mf.AgentSteps(1), output=1)]
)
def test_a_plan_that_ends_ends_its_own_sources_and_leaves_its_pace_exact(pace: Any) -> None:
    stored, drawn = Keep(), Count(None)

    def paced(flow: mf.Flow[Any]) -> mf.Plan:
        store = flow.then(lambda n: Item(n, rows=4), name="count").then(stored, name="store")
        return mf.Plan("dqn", mf.source(drawn, name="draw"), {"store": store}, pace)

    def end_early(name: str, item: Any) -> None:
        if name == "predator" and item == 3:
            executor.close_plan("prey")

    executor = Executor(_plans(paced, _simple, last=12), end_early)
    executor.run_sync()
    assert executor.meters()["predator/learn"]["items"] == 12
    assert len(stored.seen) < 24
    if isinstance(pace, mf.InTurn):
        assert drawn.made == 4 * len(stored.seen)


def test_when_the_shared_source_ends_so_do_the_sources_of_all_plans() -> None:
    executor = Executor(
        _plans(_dqn, lambda flow: mf.Plan("apex", mf.source(Count(None)), {"store": flow}, mf.Freely()), last=5)
    )
    executor.run_sync()
    assert executor.meters()["prey/draw"]["items"] == 5 * 2 * 4 // 2


def test_a_plan_that_is_not_there_cannot_end() -> None:
    executor = Executor(_plans(_simple, _simple))
    with pytest.raises(mf.PlanInvalid, match="no plan is named 'wolf'; there are 'rollouts', 'prey', 'predator'"):
        executor.close_plan("wolf")


def test_a_slow_plan_does_not_keep_anothers_fragments_waiting_in_the_split() -> None:
    """Each branch is in order; between branches, what can go goes."""
    order: list[str] = []
    executor = Executor(
        together(
            mf.source(Count(1), name="Collect"),
            lambda n: [("slow", 1), ("slow", 2), ("slow", 3), ("quick", 4)],
            {
                "slow": lambda flow: mf.Plan("slow", flow.then(_slow(50), name="learn")),
                "quick": lambda flow: mf.Plan("quick", flow),
            },
            {"slow": Feed(1), "quick": Feed(1)},
        ),
        lambda name, item: order.append(f"{name} {item}"),
    )
    executor.run_sync()
    assert order == ["quick 4", "slow 1", "slow 2", "slow 3"]


def test_a_round_begins_when_what_came_before_is_used() -> None:
    """Operators that return at once: every update that was earned is done before more experience is made."""
    lag: list[int] = []
    trained = Keep()

    def look() -> None:
        lag.append(collect.made * 10 // 3 - len(trained.seen))

    def learns_off_policy(flow: mf.Flow[Any]) -> mf.Plan:
        train = mf.source(Count(), name="Draw").then(trained)
        return mf.Plan("dqn", train, also={"store": flow}, pace=mf.InTurn(store=mf.AgentSteps(3), output=1))

    collect = Count(20, lambda number: Item(number, rows=10))
    shared = mf.source(collect, name="Collect")
    plan = together(shared, lambda item: [("prey", item)], {"prey": learns_off_policy}, {"prey": Feed(4)})
    Executor(plan, hooks=[AtRounds(look)]).run_sync()
    assert len(trained.seen) == 200 // 3
    assert lag == [0] * len(lag)
    assert len(lag) >= 20
