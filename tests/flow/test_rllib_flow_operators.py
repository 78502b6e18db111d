"""RLlib Flow's operators (Liang et al., NeurIPS 2021, arXiv:2011.12719), built from the operators of this package."""

import asyncio
from dataclasses import dataclass
from itertools import count

from marlflow.flow import Executor, Feed, Flow, Freely, InTurn, Plan, Traits, merge, source, together
from tests.flow.fakes import Batches, Count, Keep, outputs


@dataclass(frozen=True)
class FromWorker:
    """An item that carries the worker it came from."""

    worker: str
    number: int


def _worker(name: str, last: int) -> Flow[FromWorker]:
    return source(Count(last, lambda number: FromWorker(name, number)), name=name)


def test_from_actors_and_gather_async_are_sources_merged_freely() -> None:
    workers = {name: _worker(name, last) for name, last in {"w1": 3, "w2": 5}.items()}
    items = outputs(Plan("async", merge(Freely(), **workers)))
    assert [item.number for item in items if item.worker == "w1"] == [1, 2, 3]
    assert [item.number for item in items if item.worker == "w2"] == [1, 2, 3, 4, 5]


def test_gather_async_does_not_wait_for_the_slow_worker() -> None:
    async def run() -> list[str]:
        slow_may_answer, answered, turns = asyncio.Event(), [], count()

        async def slow() -> str:
            await slow_may_answer.wait()
            executor.stop()
            return "slow"

        async def fast() -> str:
            await asyncio.sleep(0)
            if next(turns) == 5:
                slow_may_answer.set()
            return "fast"

        plan = Plan("async", merge(Freely(), slow=source(slow), fast=source(fast)))
        executor = Executor(plan, lambda name, item: answered.append(item))
        await executor.run()
        return answered

    assert asyncio.run(run())[:5] == ["fast"] * 5


def test_batch_across_shards_and_gather_sync_are_a_turn_of_each() -> None:
    workers = {name: _worker(name, 3) for name in ("w1", "w2", "w3")}
    rounds = merge(InTurn(w1=1, w2=1, w3=1), **workers).gather(Batches(3))
    assert [[(item.worker, item.number) for item in one] for one in outputs(Plan("sync", rounds))] == [
        [("w1", n), ("w2", n), ("w3", n)] for n in (1, 2, 3)
    ]


def test_a_message_sent_between_rounds_arrives_before_the_next_round() -> None:
    weights = [0]

    def publish(round_weights: int) -> int:
        weights[0] += 1
        return round_weights

    publish.traits = Traits(publishes=True)  # type: ignore[attr-defined]

    def collect() -> int:
        if weights[0] == 4:
            raise StopIteration
        return weights[0]

    def learner(experience: Flow[int]) -> Plan:
        return Plan("ppo", experience.then(publish), waits_for_rounds=True)

    plan = together(source(collect), lambda item: [("a", item)], {"a": learner}, {"a": Feed(2)})
    assert outputs(plan) == [0, 1, 2, 3]


def test_zip_with_source_actor_is_an_item_that_carries_its_worker() -> None:
    sent: dict[str, list[int]] = {"w1": [], "w2": []}

    def send_weights(item: FromWorker) -> FromWorker:
        sent[item.worker].append(item.number)
        return item

    outputs(Plan("a3c", merge(Freely(), w1=_worker("w1", 2), w2=_worker("w2", 3)).then(send_weights)))
    assert sent == {"w1": [1, 2], "w2": [1, 2, 3]}


def test_duplicate_is_a_bounded_fork() -> None:
    left, right, kept = *source(Count(6)).fork(2, capacity=2), Keep()
    plan = Plan("duplicate", left, {"other": right.then(kept)}, Freely())
    assert outputs(plan) == kept.seen == [1, 2, 3, 4, 5, 6]


def test_union_with_weights_is_a_merge_in_turn() -> None:
    a, b = source(Count(4), name="a").then(lambda n: f"a{n}"), source(Count(2), name="b").then(str)
    a, b = a.named("label a"), b.named("label b")
    assert outputs(Plan("union", merge(InTurn(a=2, b=1), a=a, b=b))) == ["a1", "a2", "1", "a3", "a4", "2"]


def test_a_ratio_holds_when_it_is_nested() -> None:
    store, replay, other = (source(Count(None, make), name=name) for name, make in _MAKERS.items())
    inner = merge(InTurn(store=1, replay=1), name="inner", store=store, replay=replay)
    outer = merge(InTurn(inner=1, other=1), name="outer", inner=inner, other=other)
    seen: list[str] = []

    def stop_at_12(name: str, item: str) -> None:
        seen.append(item)
        if len(seen) == 12:
            executor.stop()

    executor = Executor(Plan("nested", outer), stop_at_12)
    executor.run_sync()
    assert seen[:12] == ["store", "other", "replay", "other"] * 3


_MAKERS = {name: (lambda number, name=name: name) for name in ("store", "replay", "other")}


def test_concurrently_round_robin_with_the_output_of_one_is_a_plan_in_turn() -> None:
    order: list[str] = []
    store = source(Count(4), name="rollouts").then(lambda n: order.append("store") or n, name="store")
    train = source(Count(None), name="replay").then(lambda n: order.append("train") or n, name="train")
    plan = Plan("dqn", train, {"store": store}, InTurn(store=1, output=2))
    executor = Executor(plan, lambda name, item: executor.stop() if item == 8 else None)
    executor.run_sync()
    assert order == ["store", "train", "train"] * 4


def test_concurrently_async_with_the_output_of_one_is_a_plan_that_runs_freely() -> None:
    kept = Keep()
    plan = Plan(
        "apex", source(Count(3), name="learn"), {"store": source(Count(5), name="rollouts").then(kept)}, Freely()
    )
    assert outputs(plan) == [1, 2, 3]
    assert kept.seen == [1, 2, 3, 4, 5]


def test_enqueue_and_dequeue_are_a_bounded_queue() -> None:
    async def learn(batch: int) -> int:
        await asyncio.sleep(0)
        return batch

    assert outputs(Plan("impala", source(Count(7)).queue(3).then(learn))) == [1, 2, 3, 4, 5, 6, 7]


def test_enqueue_that_drops_when_the_learner_is_slow_counts_what_it_drops() -> None:
    async def learn(batch: int) -> int:
        for _ in range(20):
            await asyncio.sleep(0)
        return batch

    learnt: list[int] = []
    plan = Plan("impala", source(Count(50)).queue(2, full="drop_oldest").then(learn))
    executor = Executor(plan, lambda name, item: learnt.append(item))
    executor.run_sync()
    dropped = executor.meters()["impala/queue"]["dropped"]
    assert dropped > 0
    assert len(learnt) + dropped == 50
    assert learnt == sorted(learnt)
    assert learnt[-2:] == [49, 50]  # all that the queue holds


class Even:
    """Keeps the even numbers."""

    traits = Traits(at_most_one=True)

    def add(self, number: int) -> list[int]:
        return [number] if number % 2 == 0 else []


class Each:
    """Takes lists apart."""

    def add(self, numbers: list[int]) -> list[int]:
        return numbers


class Twice:
    """For each item, the items of a flow made from it (RLlib Flow's combine)."""

    def add(self, number: int) -> list[int]:
        return [number, number * 10]


def test_filter_flatten_batch_and_combine_are_gathers() -> None:
    assert outputs(Plan("filter", source(Count(6)).gather(Even()))) == [2, 4, 6]
    assert outputs(Plan("flatten", source(Count(2, lambda n: [n, n])).gather(Each()))) == [1, 1, 2, 2]
    assert outputs(Plan("batch", source(Count(5)).gather(Batches(2)))) == [[1, 2], [3, 4]]
    assert outputs(Plan("combine", source(Count(2)).gather(Twice()))) == [1, 10, 2, 20]


def test_select_experiences_is_a_split() -> None:
    route = source(Count(6)).split(lambda n: [("even" if n % 2 == 0 else "odd", n)], ["even", "odd"])
    kept = Keep()
    plan = Plan("select", route["even"], {"odd": route["odd"].then(kept)}, Freely())
    assert outputs(plan) == [2, 4, 6]
    assert kept.seen == [1, 3, 5]


@dataclass
class EverySoOften:
    """Acts on each item that completes `every` of them, and hands all on (RLlib Flow's target network updates)."""

    every: int
    acted: int = 0
    seen: int = 0

    def __call__(self, item: int) -> int:
        self.seen += 1
        self.acted += self.seen % self.every == 0
        return item


def test_once_per_so_many_items_is_a_then_that_counts() -> None:
    sync = EverySoOften(every=4)
    assert len(outputs(Plan("target", source(Count(10)).then(sync)))) == 10
    assert sync.acted == 2
