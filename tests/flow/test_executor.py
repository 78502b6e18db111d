"""One plan at work: errors, ends, stalls, ratios, meters, hooks."""

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import marlflow
import marlflow as mf
from marlflow.flow import Executor, StageId, StageTimes
from tests.flow.fakes import Batches, Count, Item, Keep, Log, outputs


def half(number: int) -> float:
    return 1 / (number - 3)


async def half_later(number: int) -> float:
    await asyncio.sleep(0)
    return half(number)


@pytest.mark.parametrize("operator", [half, half_later])
def test_an_error_names_its_stage_and_plan_and_shows_only_the_operators_frames(operator: Callable[[int], Any]) -> None:
    plan = mf.Plan("adversary", mf.source(Count(5), name="Read").then(operator, name="Learn").then(Keep()))
    with pytest.raises(mf.StageFailed) as caught:
        Executor(plan).run_sync()
    assert str(caught.value).splitlines() == [
        "in stage 'Learn' of plan 'adversary': Read -> Learn -> Keep",
        "ZeroDivisionError: division by zero",
    ]
    cause = caught.value.__cause__
    assert isinstance(cause, ZeroDivisionError)
    assert {frame.name for frame in traceback.extract_tb(cause.__traceback__)} <= {"half", "half_later"}
    package = Path(marlflow.__file__).parent
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames if Path(frame.filename).is_relative_to(package)] == ["run_sync"]


@pytest.mark.parametrize("kind", ["gather", "split"])
def test_errors_of_gathers_and_splits_are_named_too(kind: str) -> None:
    class Broken:
        def add(self, item: Any) -> list[Any]:
            raise ValueError("no")

        def __call__(self, item: Any) -> list[Any]:
            raise ValueError("no")

    flow = mf.source(Count(1))
    made = flow.gather(Broken()) if kind == "gather" else flow.split(Broken(), ["x"])["x"]
    with pytest.raises(mf.StageFailed, match=r"in stage 'Broken' of plan 'p'.*\nValueError: no"):
        Executor(mf.Plan("p", made)).run_sync()


def test_a_stage_that_would_end_the_process_has_failed() -> None:
    plan = mf.Plan("p", mf.source(Count(5)).then(lambda _: sys.exit("no data"), name="Quits"))
    with pytest.raises(mf.StageFailed, match=r"in stage 'Quits' of plan 'p'.*\nSystemExit: no data"):
        Executor(plan).run_sync()


def test_a_split_to_an_unknown_branch() -> None:
    flow = mf.source(Count(1)).split(lambda n: [("z", n)], ["x", "y"], name="ByPolicy")
    with pytest.raises(mf.StageFailed, match=r"it routed an item to 'z'; its branches are \['x', 'y'\]"):
        Executor(mf.Plan("p", flow["x"], {"y": flow["y"]}, mf.Freely())).run_sync()


def test_stop_iteration_ends_a_source_and_nothing_else() -> None:
    def leaks(item: int) -> int:
        raise StopIteration

    with pytest.raises(mf.StageFailed, match="in stage 'leaks'"):
        Executor(mf.Plan("p", mf.source(Count(2)).then(leaks))).run_sync()


def test_a_failure_is_raised_when_what_is_in_flight_has_landed() -> None:
    landed: list[int] = []

    async def slow(number: int) -> int:
        for _ in range(20):
            await asyncio.sleep(0)
        landed.append(number)
        return number

    async def fails(number: int) -> int:
        raise ValueError("first")

    plan = mf.Plan(
        "p", mf.source(Count(1), name="a").then(fails), {"slow": mf.source(Count(9), name="b").then(slow)}, mf.Freely()
    )
    with pytest.raises(mf.StageFailed, match="first"):
        Executor(plan).run_sync()
    assert landed == [1]


def test_what_a_hook_or_on_output_raises_comes_out_as_it_is() -> None:
    def refuse(name: str, item: Any) -> None:
        raise LookupError("from on_output")

    class Refuse(Log):
        def after(self, stage: StageId, items: int, times: StageTimes) -> None:
            raise LookupError("from a hook")

    async def later() -> int:
        return 1

    with pytest.raises(LookupError, match="from on_output"):
        Executor(mf.Plan("p", mf.source(Count(1))), refuse).run_sync()
    for make in (Count(1), later):
        with pytest.raises(LookupError, match="from a hook"):
            Executor(mf.Plan("p", mf.source(make, name="s")), hooks=[Refuse()]).run_sync()


# -- ends -------------------------------------------------------------------------------------------------------


async def _numbers() -> AsyncIterator[int]:
    yield 1
    yield 2


def test_sources_that_are_awaited_end_with_end_of_flow_or_with_their_iterator() -> None:
    count = Count(2)

    async def read() -> int:
        if count.made == 2:
            raise mf.EndOfFlow
        return count()  # type: ignore[no-any-return]

    assert outputs(mf.Plan("p", mf.source(read))) == [1, 2]
    numbers = _numbers()
    assert outputs(mf.Plan("p", mf.source(lambda: anext(numbers), name="numbers"))) == [1, 2]


def test_a_coroutine_that_raises_stop_iteration_is_told_what_to_do() -> None:
    async def read() -> int:
        raise StopIteration

    with pytest.raises(mf.StageFailed, match="a source that is awaited ends its flow by raising EndOfFlow"):
        Executor(mf.Plan("p", mf.source(read))).run_sync()


def test_stop_ends_a_ratio_at_rest_and_after_what_queues_hold() -> None:
    stored, trained = Keep(), Keep()
    store = mf.source(Count(None), name="rollouts").queue(4).then(stored, name="store")
    train = mf.source(Count(None), name="replay").then(trained, name="train")
    executor = Executor(
        mf.Plan("dqn", train, {"store": store}, mf.InTurn(store=1, output=3)),
        lambda name, item: executor.stop() if item == 7 else None,
    )
    executor.run_sync()
    assert len(trained.seen) == 3 * len(stored.seen)
    assert len(stored.seen) > 3


def test_followers_end_when_the_side_that_earns_their_turns_has() -> None:
    """Items that wait for a turn that will never come are dropped and counted, and their source ends too."""
    trained, store = (
        mf.source(Count(None), name="replay").queue(2),
        mf.source(Count(5, lambda n: Item(n, rows=3)), name="store"),
    )
    seen: list[int] = []
    executor = Executor(
        mf.Plan("dqn", trained, {"store": store}, mf.InTurn(store=mf.AgentSteps(5), output=1)),
        lambda name, item: seen.append(item),
    )
    executor.run_sync()
    assert seen == [1, 2, 3]
    assert executor.meters()["dqn/queue"]["dropped"] == executor.meters()["dqn/replay"]["items"] - 3


def test_what_waits_in_a_queue_is_counted_at_the_moment_and_not_added_up() -> None:
    seen: list[int] = []
    plan = mf.Plan("p", mf.source(Count(5), name="Read").queue(3).then(lambda n: n, name="Use"))
    executor = Executor(plan, lambda _, __: seen.append(executor.meters()["p/queue"]["waiting"]))
    executor.run_sync()
    assert len(seen) == 5
    assert max(seen) <= 3
    assert executor.meters()["p/queue"]["waiting"] == 0
    assert "waiting" not in executor.meters()["p/Use"]
    assert "waiting" not in executor.state(lambda item: item)["meters"]["p/queue"]


def test_a_stall_names_each_stage_and_what_it_waits_for() -> None:
    route = mf.source(Count(4), name="Read").split(lambda n: [("x", n)], ["x", "y"], name="ByPolicy")
    plan = mf.Plan("p", mf.merge(mf.InTurn(x=1, y=1), x=route["x"], y=route["y"]))
    with pytest.raises(mf.Stalled) as caught:
        Executor(plan).run_sync()
    assert str(caught.value).splitlines() == [
        "the dataflow stalled: nothing is in flight and no stage can move",
        "  p/Read waits for room at the next stage",
        "  p/ByPolicy waits for room at the next stage",
        "  p/merge waits for its turn as 'x'",
    ]


# -- ratios -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 4, 9, 25])
@pytest.mark.parametrize("starts", [0, 10])
def test_updates_are_exact_whatever_the_size_of_an_item(rows: int, starts: int) -> None:
    store = mf.source(Count(20, lambda n: Item(n, rows)), name="store")
    trained = outputs(
        mf.Plan("dqn", mf.source(Count(None)), {"store": store}, mf.InTurn(store=mf.AgentSteps(4, starts), output=1))
    )
    assert len(trained) == max(0, 20 * rows - starts) // 4


def test_dropped_and_filtered_items_earn_nothing() -> None:
    class Odd:
        traits = mf.Traits(at_most_one=True)

        def add(self, item: Item) -> list[Item]:
            return [item] if item.number % 2 else []

    async def slow(item: Item) -> Item:
        for _ in range(7):
            await asyncio.sleep(0)
        return item

    kept = Keep()
    store = mf.source(Count(40, lambda n: Item(n, 4))).queue(1, "drop_oldest").then(slow).gather(Odd()).then(kept)
    plan = mf.Plan(
        "dqn", mf.source(Count(None), name="draw"), {"store": store}, mf.InTurn(store=mf.AgentSteps(4), output=1)
    )
    executor = Executor(plan)
    executor.run_sync()
    assert executor.meters()["dqn/draw"]["items"] == len(kept.seen) < 20


# -- looking ----------------------------------------------------------------------------------------------------


def test_run_sync_works_inside_a_running_loop() -> None:
    async def notebook() -> list[int]:
        return outputs(mf.Plan("p", mf.source(Count(3)).then(half_or_none)))

    async def half_or_none(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert asyncio.run(notebook()) == [1, 2, 3]


def test_meters_count_items_and_rows_and_times_that_add_up() -> None:
    async def learn(item: list[Item]) -> Item:
        for _ in range(50):
            await asyncio.sleep(0)
        return Item(rows=sum(one.rows for one in item))

    class Watch(Log):
        """At each event, a stage's times add up to the time since it began: the same for all of them."""

        def after(self, stage: StageId, items: int, times: StageTimes) -> None:
            if stage.stage == "learn" and len(left) < 3:  # a stage that has ended gets no older
                meters = executor.meters()
                sums = [m["busy_s"] + m["starved_s"] + m["blocked_s"] for m in meters.values() if m["busy_s"] > 0]
                assert max(sums) == pytest.approx(min(sums), abs=1e-9)

    flow = mf.source(Count(None, lambda n: Item(n, 2)), name="Read").gather(Batches(3)).then(learn).queue(5)
    left: list[Item] = []

    def stop_at_third(name: str, item: Item) -> None:
        left.append(item)
        if len(left) == 3:
            executor.stop()

    executor = Executor(mf.Plan("p", flow), stop_at_third, [Watch()])
    executor.run_sync()
    meters = executor.meters()
    batches = meters["p/learn"]["items"]
    assert meters["p/Batches"]["items"] == batches == meters["p/queue"]["items"]
    assert meters["p/learn"]["rows"] == 6 * batches
    assert meters["p/Read"]["rows"] == 2 * meters["p/Read"]["items"]


def test_hooks_see_before_and_after_of_every_stage_in_order() -> None:
    log = Log()
    a, b = mf.source(Count(1), name="Read").fork(2, capacity=1)
    plan = mf.Plan("p", mf.merge(mf.Freely(), a=a, b=b).gather(Batches(2)))
    Executor(plan, hooks=[log]).run_sync()
    assert [f"{when} {stage.removeprefix('p/')} {items}" for when, stage, items in log.events] == [
        "before Read 1",
        "after Read 1",
        "before fork 1",
        "after fork 1",
        "before Read 1",
        "before merge 1",
        "after merge 1",
        "before Batches 1",
        "after Batches 0",
        "before merge 1",
        "after merge 1",
        "before Batches 1",
        "after Batches 1",
    ]


class Total:
    """Gives the sum of everything at the end, whatever it is asked."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add(self, number: int) -> list[int]:
        self.numbers.append(number)
        return []

    def rest(self) -> list[int]:
        return [sum(self.numbers)]


def test_what_a_gather_holds_at_the_end_is_asked_for_once() -> None:
    assert outputs(mf.Plan("p", mf.source(Count(4)).gather(Total()))) == [10]


def test_an_executor_runs_once() -> None:
    executor = Executor(mf.Plan("p", mf.source(Count(2))))
    executor.run_sync()
    with pytest.raises(RuntimeError, match="an executor runs its plan once; make another one"):
        executor.run_sync()


def test_a_plan_that_shares_nothing_has_no_rounds() -> None:
    with pytest.raises(mf.PlanInvalid, match="there are rounds only of what plans share"):
        Executor(mf.Plan("p", mf.source(Count(2))), between_rounds=lambda: None)


def test_a_run_that_is_cancelled_cancels_its_calls() -> None:
    landed: list[int] = []

    async def slowly(number: int) -> int:
        await asyncio.sleep(0.5)
        landed.append(number)
        return number

    async def cancelled() -> None:
        executor = Executor(mf.Plan("p", mf.source(Count(3)).then(slowly)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(executor.run(), 0.1)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert landed == []

    asyncio.run(cancelled())


def test_a_run_that_is_cancelled_while_it_waits_after_a_failure_cancels_its_calls() -> None:
    has_begun: list[int] = []

    async def slowly(number: int) -> int:
        has_begun.append(number)
        await asyncio.sleep(60)
        return number

    async def fails(number: int) -> int:
        while not has_begun:
            await asyncio.sleep(0)
        raise ValueError(number)

    async def cancelled() -> None:
        slow, failing = mf.source(Count(3)).fork(2, capacity=1)
        flow = mf.merge(slow=slow.then(slowly), failing=failing.then(fails), pace=mf.Freely())
        executor = Executor(mf.Plan("p", flow))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(executor.run(), 0.2)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(cancelled())


def test_an_annotation_that_means_nothing_leaves_the_stage_untyped() -> None:
    def doubled(number: int) -> int:
        return 2 * number

    doubled.__annotations__ = {"number": "a whole number", "return": "np.float_"}
    assert outputs(mf.Plan("p", mf.source(Count(3)).then(doubled))) == [2, 4, 6]
