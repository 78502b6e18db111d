"""The inline runtime: learners, replays and workers are plain objects here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from marlflow.base.items import Weights
from marlflow.learn.learner import LearnerState, TorchLearner
from marlflow.rollout.fragment import Evaluated
from marlflow.rollout.protocol import Matchup, Request, Round
from marlflow.rollout.worker import RolloutWorker
from marlflow.runtime.inline.place import InlinePlace
from marlflow.runtime.protocol import Parts
from marlflow.runtime.rounds import make_round
from marlflow.runtime.spec import RunSpec


class InlineWorkers:
    """All workers, one after the other."""

    def __init__(self, spec: RunSpec) -> None:
        self._ticks = spec.ticks
        self._workers: list[RolloutWorker] = []
        for number in range(spec.num_workers):
            self._workers.append(spec.worker(number))

    def collect(self, request: Request) -> Round:
        """One round."""
        given = (self._ticks, request.weights, request.schedules, request.matchups)
        made = [worker.collect(*given) for worker in self._workers]
        return make_round(request.round, [receipt for receipt, _ in made], [batches for _, batches in made])

    def evaluate(
        self, episodes: range, weights: Mapping[str, Weights], matchups: Sequence[Matchup] | None = None
    ) -> Evaluated:
        """Greedy episodes, all on the first worker."""
        return self._workers[0].evaluate(episodes, weights, matchups)

    def close(self) -> None:
        """Closes all environments."""
        for worker in self._workers:
            worker.close()


class InlineRuntime:
    """One process, one thread; the same seed gives the same bits."""

    def __init__(self) -> None:
        self._learners: dict[str, TorchLearner] = {}
        self._workers: InlineWorkers | None = None
        self._threads = torch.get_num_threads()

    def available(self) -> None:
        """One process takes what it gets."""

    def start(self, spec: RunSpec) -> Parts:
        """Builds every part here."""
        torch.set_num_threads(1)
        replays = {}
        for name in spec.learning:
            place = InlinePlace(f"learner {name}")
            learner = self._learners[name] = spec.policies[name].learner()
            learner.place = place
            if spec.policies[name].algorithm.remembers:
                replay = replays[name] = spec.policies[name].replay()
                own = spec.policies[name].placement.replay == "own"
                replay.place = InlinePlace(f"replay {name}") if own else place
        self._workers = InlineWorkers(spec)
        return Parts(self._workers, dict(self._learners), replays)

    def learner_state(self, policy: str) -> LearnerState:
        """All parameters of a policy's learner."""
        return self._learners[policy].state()

    def close(self) -> None:
        """Closes all environments."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None
        torch.set_num_threads(self._threads)
