"""Stages that run elsewhere than beside their learner or replay: with the rollout workers, or on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from marlflow.algorithms.algorithm import Algorithm
from marlflow.base.batch import Array
from marlflow.base.items import Fragment, Packed, as_it_is
from marlflow.flow import Flow, Located, Outcome, Place, Plan, StageCall, StageTimes, source
from marlflow.flow.relocate import Where, relocated
from marlflow.learner.learner import TorchLearner
from marlflow.learner.protocol import Learner
from marlflow.learner.published_learner import PublishedLearner, Publisher
from marlflow.replay.protocol import Replay
from marlflow.runtime.stage_chain import Rows, merge_payloads, run_chain
from marlflow.sampling.worker_stages import WorkerStages


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """The driver as a place that opens rows: `fetch` gives what a payload refers to, `put` a payload to send on."""

    fetch: Callable[[Any], Any] = as_it_is
    put: Callable[[Any], Any] = as_it_is
    name: str = "driver"

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Outcome]:
        """A call of all stages in order."""

        def call(items: Sequence[Any]) -> Outcome:
            outputs, times = run_chain(calls, [self._opened(item) for item in items])
            return Outcome([self._packed(output) for output in outputs], times)

        return call

    def _opened(self, item: Any) -> Any:
        payloads = [self.fetch(payload) for payload in getattr(item, "payloads", ())]
        return merge_payloads(payloads, item.keys) if payloads else item

    def _packed(self, output: Any) -> Any:
        return Packed(output.rows, (self.put(output),)) if isinstance(output, Rows) else output


@dataclass(frozen=True, slots=True)
class WorkersPlace:
    """The rollout workers, as the place of stages that ran there before the fragment came: it tells when."""

    name: str = "rollout workers"

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Fragment]], Outcome]:
        """A call that hands fragments on."""

        def call(fragments: Sequence[Fragment]) -> Outcome:
            by_stage = [
                [StageTimes(*made.finished[at]) for made in fragments if made.finished] for at in range(len(calls))
            ]
            return Outcome(list(fragments), [_together(times) for times in by_stage])

        return call


WORKERS = WorkersPlace()


def _together(times: Sequence[StageTimes]) -> StageTimes:
    """As one call: from the first start, for as long as all took."""
    began_s = min([one.began_s for one in times], default=0.0)
    return StageTimes(
        began_s, began_s + sum(one.ended_s - one.began_s for one in times), sum(one.rows for one in times)
    )


@dataclass(frozen=True, slots=True)
class RelocatedStages:
    """Which stages of a learner's plan run where, and how to build what stands for the learner there.

    Only those of a learner of one policy may run elsewhere.
    """

    learner: str
    policies: Sequence[str]
    algorithm: Algorithm
    stages: Mapping[str, Where]
    build: Callable[[], TorchLearner]

    def on_worker(self, fetch: Callable[[Any], Array] = as_it_is) -> WorkerStages | None:
        """What a worker does to the rows of the learner's policy; None if nothing.

        `fetch` opens weights that come as references. A worker has no plan, so it builds the learner's to take the
        calls of these stages from it.
        """
        if "worker" not in self.stages.values():
            return None
        (policy,) = self.policies
        worker_stages = WorkerStages(policy)
        learner = cast(Learner, self._published(worker_stages, WORKERS, fetch))
        replays = [cast(Replay, RelocatedReplay(self.learner, WORKERS)) for _ in range(self.algorithm.replay_shards)]
        nothing: Flow[Any] = source(lambda: None)
        plan = self.algorithm.plan(nothing, learner, replays)
        worker_stages.stages = {
            stage.name: stage.call
            for stage in plan.stages()
            if self.stages.get(stage.name) == "worker" and stage.call is not None
        }
        return worker_stages if worker_stages.stages else None

    def applied(self, plan: Plan, experience: Flow[Fragment], learner: Learner, driver: DriverPlace) -> Plan:
        """The `plan`, over `experience` and its `learner`, with its stages where they are wished."""
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
    """Stands for a replay where a stage of its plan runs elsewhere, which needs nothing of it."""

    name: str
    place: Place
