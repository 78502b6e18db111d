"""Rollout workers as actors: one call per worker and round, one reference per policy; only receipts are opened."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch

from marlflow.base.errors import ActorLost
from marlflow.base.items import Weights
from marlflow.rollout.fragment import Evaluated
from marlflow.rollout.protocol import Matchup, Request, Round
from marlflow.runtime.ray.handles import as_exception
from marlflow.runtime.ray.host import Raised, raised
from marlflow.runtime.rounds import make_round
from marlflow.runtime.spec import RunSpec


class RolloutActor:
    """Hosts one worker."""

    def __init__(self, spec: RunSpec, number: int) -> None:
        torch.set_num_threads(1)
        self._spec, self._number = spec, number
        self._worker: Any = None

    def ready(self) -> Raised | None:
        """Opens the environments; what went wrong, if anything did."""
        try:
            self._worker = self._spec.worker(self._number)
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error)
        gc.freeze()  # what is here now stays: no collection has to look at it again
        return None

    def collect(
        self,
        versions: Mapping[str, int],
        schedules: Mapping[str, Mapping[str, float]],
        matchups: Mapping[int, Sequence[Matchup]] | None,
        *flats: Any,
    ) -> Any:
        """A receipt, and a batch for each learning policy. `flats` are the weights of the policies in `versions`."""
        learning = self._spec.learning
        try:
            receipt, batches = self._worker.collect(self._spec.ticks, _weights(versions, flats), schedules, matchups)
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            receipt, batches = raised(error), dict.fromkeys(learning)
        # Where nobody learns there is one return, which Ray does not want in a tuple.
        return (receipt, *(batches[name] for name in learning)) if learning else receipt

    def evaluate(
        self, episodes: Sequence[int], matchups: Sequence[Matchup] | None, versions: Mapping[str, int], *flats: Any
    ) -> Any:
        """Results of greedy episodes."""
        try:
            return self._worker.evaluate(episodes, _weights(versions, flats), matchups)
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error)


def _weights(versions: Mapping[str, int], flats: Sequence[Any]) -> dict[str, Weights]:
    return {name: Weights(version, flat) for (name, version), flat in zip(versions.items(), flats, strict=True)}


class RayWorkers:
    """All workers. A worker is sent only the weights that it does not have yet, by reference."""

    def __init__(self, spec: RunSpec, actors: Sequence[Any]) -> None:
        self._spec, self._actors = spec, list(actors)
        returns = 1 + len(spec.learning)
        self._collects = [actor.collect.options(num_returns=returns) for actor in self._actors]
        self._sent: list[dict[str, int]] = [{} for _ in self._actors]

    async def collect(self, request: Request) -> Round:
        """One round."""
        calls = []
        for number, collect in enumerate(self._collects):
            versions, flats = self._unsent(number, request.weights)
            made = collect.remote(versions, request.schedules, self._dealt(number, request.matchups), *flats)
            calls.append(made if self._spec.learning else [made])
        receipts = await _all([refs[0] for refs in calls])
        payloads = [dict(zip(self._spec.learning, refs[1:], strict=True)) for refs in calls]
        return make_round(request.round, receipts, payloads)

    def _dealt(
        self, number: int, matchups: Mapping[int, Sequence[Matchup]] | None
    ) -> Mapping[int, Sequence[Matchup]] | None:
        """Those of a worker's own copies."""
        return None if matchups is None else {copy: matchups[copy] for copy in self._spec.copies_of(number)}

    async def evaluate(
        self, episodes: range, weights: Mapping[str, Weights], matchups: Sequence[Matchup] | None = None
    ) -> Evaluated:
        """Greedy episodes, dealt out to all workers."""
        versions = {name: new.version for name, new in weights.items()}
        flats = [new.flat for new in weights.values()]
        calls = []
        for number, actor in enumerate(self._actors):
            share = list(episodes[number :: len(self._actors)])
            dealt = None if matchups is None else list(matchups[number :: len(self._actors)])
            if share:
                calls.append(actor.evaluate.remote(share, dealt, versions, *flats))
        parts: list[Evaluated] = await _all(calls)
        results = sorted((result for part in parts for result in part.episodes), key=lambda result: result.episode)
        return Evaluated(tuple(results), tuple(fault for part in parts for fault in part.faults))

    def _unsent(self, number: int, weights: Mapping[str, Weights]) -> tuple[dict[str, int], list[Any]]:
        known = self._sent[number]
        new = {name: found for name, found in weights.items() if known.get(name) != found.version}
        versions = {name: found.version for name, found in new.items()}
        known.update(versions)
        return versions, [found.flat for found in new.values()]


async def _all(refs: Sequence[Any]) -> list[Any]:
    try:
        found = await asyncio.gather(*refs)
    except ray.exceptions.RayActorError as error:
        raise ActorLost(f"a rollout worker died: {error}") from error
    for value in found:
        if isinstance(value, Raised):
            raise as_exception(value)
    return found
