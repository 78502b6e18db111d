"""Evaluations of which some episodes end every process that plays them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import ray

from marlflow.runtime.ray.workers import RayWorkers
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.receipts import EpisodeResult, Evaluated


class Worker:
    """Plays what it is asked to, unless one of the episodes is deadly."""

    def __init__(self, deadly: set[int]) -> None:
        self.actor, self.losses, self.asked = object(), 0, list[EvaluationRequest]()
        self._deadly = deadly

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        self.asked.append(request)
        if self._deadly.intersection(request.episodes):
            raise ray.exceptions.RayActorError
        return Evaluated(tuple(EpisodeResult(0, number, 1, {"a": 0.0}, 0, {"a": "p"}) for number in request.episodes))

    def replace_lost(self, _error: Exception) -> None:
        self.losses += 1

    def note_answer(self) -> None:
        pass


class Workers(RayWorkers):
    def __init__(self, count: int, deadly: set[int]) -> None:
        self._inference, self._kind = None, "rollout worker"
        self.workers = [Worker(deadly) for _ in range(count)]

    async def _current_weights(self) -> Any:
        return {}

    async def _ready_workers(self) -> Any:
        return self.workers


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("deadly", [set(), {5}, {0, 1}, {0, 1, 2}, {7, 8, 9, 10}, {0, 19}, set(range(0, 20, 3))])
def test_deadly_episodes_are_left_out_and_all_others_played_once(workers: int, deadly: set[int]) -> None:
    them = Workers(workers, deadly)
    found = asyncio.run(them.evaluate(EvaluationRequest(range(20), {})))
    assert [one.episode for one in found.episodes] == [number for number in range(20) if number not in deadly]
    assert found.not_begun == 0
    assert sum(one.losses for one in them.workers) <= 2 * workers + 10 * len(deadly)


def test_the_time_of_an_evaluation_ends_the_search() -> None:
    them = Workers(1, {5})
    found = asyncio.run(them.evaluate(EvaluationRequest(range(20), {}, within_s=0.0)))
    assert (found.episodes, found.not_begun) == ((), 20)
    assert len(them.workers[0].asked) == 1
    them = Workers(1, {5})
    asyncio.run(them.evaluate(EvaluationRequest(range(20), {}, within_s=60.0)))
    given = [one.within_s for one in them.workers[0].asked]
    assert all(one is not None and one <= 60.0 for one in given)
    assert given == sorted(given, reverse=True)  # type: ignore[type-var]
    assert given[-1] != 60.0


def test_workers_that_are_all_lost_whatever_they_play_end_the_run() -> None:
    with pytest.raises(Exception, match="10 times in a row no rollout worker lived through its evaluation"):
        asyncio.run(Workers(2, set(range(400))).evaluate(EvaluationRequest(range(400), {})))
