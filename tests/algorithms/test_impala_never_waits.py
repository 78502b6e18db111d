"""Workers never wait for IMPALA's learner, nor the learner for workers: each in turn stops, the other continues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import marlflow as mf
from marlflow.batches.items import Packed
from marlflow.flow import Executor, Outcome, StageCall, StageTimes
from tests.algorithms.parts import make_learner

ROWS, WAITING, MADE = 10, 3, 20
PATIENCE = 500
"""Turns of the event loop that whoever stands still gives the other."""
ALGORITHMS: list[Any] = [
    mf.IMPALA(batch_agent_steps=2 * ROWS, queue_fragments=WAITING),
    mf.APPO(batch_agent_steps=2 * ROWS, queue_fragments=WAITING, minibatch_agent_steps=ROWS),
]


class Learning:
    """A place that says it has learned, once `free` lets it."""

    name = "learner hunter"

    def __init__(self, free: Callable[[], bool]) -> None:
        self.free, self.batches = free, []  # type: ignore[var-annotated]

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Packed]], Awaitable[Outcome]]:
        async def call(items: Sequence[Packed]) -> Outcome:
            await until(self.free)
            self.batches += [item.payloads for item in items]
            updates = [mf.Update("hunter", item.rows, 1, len(self.batches)) for item in items]
            return Outcome(updates, [StageTimes(0.0, 0.0, 0)] * len(calls))

        return call


class Acting:
    """A source of `MADE` fragments, each numbered by its payload; it stops before the fragment `until`."""

    def __init__(self, stop_before: int = MADE, free: Callable[[], bool] = lambda: True) -> None:
        self.stop_before, self.free, self.made, self.freed = stop_before, free, 0, False

    async def __call__(self) -> mf.Fragment:
        if self.made == self.stop_before:
            self.freed = await until(self.free)
        if self.made == MADE:
            raise mf.EndOfFlow
        self.made += 1
        return mf.Fragment("hunter", 0, self.made - 1, True, ROWS, 0, (self.made - 1,))


async def until(holds: Callable[[], bool]) -> bool:
    """Whether it held before the others had had all the time they could want."""
    for _ in range(PATIENCE):
        if holds():
            return True
        await asyncio.sleep(0)
    return False


def run(algorithm: Any, acting: Acting, learning: Learning) -> Executor:
    learner = make_learner(algorithm)
    learner.place = learning
    plan: mf.Plan = algorithm.plan(mf.source(acting), learner, ())
    executor = Executor(plan)
    executor.run_sync()
    return executor


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_while_the_learner_is_busy_workers_make_all_they_can_and_the_oldest_is_dropped(algorithm: Any) -> None:
    acting = Acting()
    learning = Learning(free=lambda: acting.made == MADE)
    executor = run(algorithm, acting, learning)
    learned = [number for batch in learning.batches for number in batch]
    assert acting.made == MADE
    assert learned[:2] == [0, 1], "the first batch went to the learner at once"
    assert learned == sorted(set(learned))
    dropped = executor.meters()[f"{algorithm.name}/newest"]["dropped"]
    # Fragments that had left the queue wait for the learner; of the others the newest remain. One of a batch of two may
    # be left.
    assert MADE - dropped - len(learned) in (0, 1)
    assert dropped >= MADE - 2 - WAITING - 2 * 3
    assert {MADE - 2, MADE - 3} <= set(learned)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_while_the_workers_are_busy_the_learner_learns_from_all_that_is_there(algorithm: Any) -> None:
    learning = Learning(free=lambda: True)
    acting = Acting(stop_before=6, free=lambda: len(learning.batches) == 3)
    executor = run(algorithm, acting, learning)
    assert acting.freed, "all that was made had been learned from before the workers went on"
    learned = [number for batch in learning.batches for number in batch]
    dropped = executor.meters()[f"{algorithm.name}/newest"]["dropped"]
    assert learned[:6] == list(range(6))
    assert MADE - dropped - len(learned) in (0, 1)
