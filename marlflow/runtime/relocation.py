"""Stages that run elsewhere than at their learner or replay: on rollout workers, or on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from marlflow.algorithms.algorithm import Algorithm
from marlflow.base.arrays import Array
from marlflow.batches.items import Fragment, as_it_is
from marlflow.flow import Flow, Located, Outcome, Place, Plan, StageCall, StageTimes, source
from marlflow.flow.relocate import Where, relocated
from marlflow.learner.learner import TorchLearner
from marlflow.learner.protocol import Learner
from marlflow.learner.published_learner import PublishedLearner, Publisher
from marlflow.replay.protocol import Replay
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.sampler_config import WorkerStages


@dataclass(frozen=True, slots=True)
class WorkersPlace:
    """The place of stages that workers have run before a fragment arrives, which has their times."""

    name: str = "rollout workers"

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Fragment]], Outcome]:
        def call(fragments: Sequence[Fragment]) -> Outcome:
            by_stage = [
                [StageTimes(*fragment.finished[at]) for fragment in fragments if fragment.finished]
                for at in range(len(calls))
            ]
            return Outcome(list(fragments), [StageTimes.total(times) for times in by_stage])

        return call


WORKERS = WorkersPlace()


@dataclass(frozen=True, slots=True)
class RelocatedStages:
    """The stages of a learner's plan that run elsewhere; `build` makes the learner's copies for these places.

    The learner must have a single policy.
    """

    learner: str
    policies: Sequence[str]
    algorithm: Algorithm
    stages: Mapping[str, Where]
    build: Callable[[], TorchLearner]

    def on_worker(self, fetch: Callable[[Any], Array] = as_it_is) -> WorkerStages | None:
        """Return the stages that workers run, or None; `fetch` dereferences published weights."""
        if "worker" not in self.stages.values():
            return None
        (policy,) = self.policies
        worker_stages = WorkerStages(policy)
        learner = cast(Learner, self._published(worker_stages, WORKERS, fetch))
        replays = [cast(Replay, RelocatedReplay(self.learner, WORKERS)) for _ in range(self.algorithm.replay_shards)]
        # A worker has no plan: build one, over an empty source, to take the stages' calls from it.
        empty: Flow[Any] = source(lambda: None)
        plan = self.algorithm.plan(empty, learner, replays)
        worker_stages.stages = {
            stage.name: stage.call
            for stage in plan.stages()
            if self.stages.get(stage.name) == "worker" and stage.call is not None
        }
        return worker_stages if worker_stages.stages else None

    def applied(self, plan: Plan, experience: Flow[Fragment], learner: Learner, driver: InlinePlace) -> Plan:
        """Return `plan`, which is over `experience` and `learner`, with its stages relocated."""
        if not self.stages:
            return plan
        places: dict[Where, Place] = {"worker": WORKERS, "driver": driver}
        learners: dict[Where, Located] = {
            "worker": self._published(learner, WORKERS, as_it_is),
            "driver": self._published(learner, driver, driver.fetch),
        }

        def stand_in(at: Any, where: Where) -> Located:
            return learners[where] if at is learner else RelocatedReplay(self.learner, places[where])

        return relocated(plan, experience, self.stages, stand_in)

    def _published(self, publisher: Publisher, place: Place, fetch: Callable[[Any], Any]) -> PublishedLearner:
        trains_on = self.algorithm.capabilities.trains_on
        return PublishedLearner(self.learner, trains_on, self.build, publisher, place, fetch)


@dataclass(frozen=True, slots=True)
class RelocatedReplay:
    """Replaces the replay at which a relocated stage was defined."""

    name: str
    place: Place
