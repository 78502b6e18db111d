"""Stages that run elsewhere than beside their learner or replay: with the rollout workers, or on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from marlflow.algorithms.algorithm import Algorithm
from marlflow.base.batch import Array
from marlflow.base.items import Fragment, Packed, as_it_is
from marlflow.flow import Flow, Outcome, Place, Plan, StageTimes, source
from marlflow.flow.relocate import Where, relocated
from marlflow.learn.learner import TorchLearner
from marlflow.learn.protocol import Learner
from marlflow.learn.published import PublishedLearner
from marlflow.replay.protocol import Replay
from marlflow.rollout.finishing import Finishing
from marlflow.runtime.chain import Rows, opened, run_chain


@dataclass(frozen=True, slots=True)
class DriverPlace:
    """The driver as a place that opens rows: `fetch` gives what a payload refers to, `put` a payload to send on."""

    fetch: Callable[[Any], Any] = as_it_is
    put: Callable[[Any], Any] = as_it_is
    name: str = "driver"

    def prepare(self, operators: Sequence[Any]) -> Callable[[Sequence[Any]], Outcome]:
        """A call of all operators in order."""

        def call(items: Sequence[Any]) -> Outcome:
            outputs, times = run_chain(operators, [self._opened(item) for item in items])
            return Outcome([self._packed(output) for output in outputs], times)

        return call

    def _opened(self, item: Any) -> Any:
        payloads = [self.fetch(payload) for payload in getattr(item, "payloads", ())]
        return opened(payloads, item.keys) if payloads else item

    def _packed(self, output: Any) -> Any:
        return Packed(output.rows, (self.put(output),)) if isinstance(output, Rows) else output


@dataclass(frozen=True, slots=True)
class WorkersPlace:
    """The rollout workers, as the place of stages that ran there before the fragment came: it tells when."""

    name: str = "rollout workers"

    def prepare(self, operators: Sequence[Any]) -> Callable[[Sequence[Fragment]], Outcome]:
        """A call that hands fragments on."""

        def call(fragments: Sequence[Fragment]) -> Outcome:
            by_stage = [
                [StageTimes(*made.finished[at]) for made in fragments if made.finished] for at in range(len(operators))
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
class Moves:
    """Which stages of a policy's plan run where; and how to build what stands for its learner there."""

    policy: str
    algorithm: Algorithm
    stages: Mapping[str, Where]
    build: Callable[[], TorchLearner]

    def on_worker(self, fetch: Callable[[Any], Array] = as_it_is) -> Finishing | None:
        """What a worker does to the policy's rows; None if nothing. `fetch` opens weights that come as references."""
        finishing = Finishing(self.policy)
        plan = self._plan_at(WORKERS, source(lambda: None), finishing, fetch)
        finishing.stages = {
            stage.name: stage.operator for stage in plan.stages() if self.stages.get(stage.name) == "worker"
        }
        return finishing if finishing.stages else None

    def applied(self, plan: Plan, experience: Flow[Fragment], learner: Learner, driver: DriverPlace) -> Plan:
        """The policy's `plan`, over `experience` and its `learner`, with its stages where they are wished."""
        if not self.stages:
            return plan
        built: dict[Where, Plan] = {
            "worker": self._plan_at(WORKERS, experience, learner, as_it_is),
            "driver": self._plan_at(driver, experience, learner, driver.fetch),
        }
        return relocated(plan, experience, self.stages, built)

    def _plan_at(self, place: Place, experience: Flow[Any], publisher: Any, fetch: Callable[[Any], Any]) -> Plan:
        algorithm = self.algorithm
        learner = PublishedLearner(self.policy, algorithm.capabilities.trains_on, self.build, publisher, place, fetch)
        replays = [cast(Replay, _NoReplay(self.policy, place)) for _ in range(algorithm.replay_shards)]
        return algorithm.plan(experience, cast(Learner, learner), replays)


@dataclass(frozen=True, slots=True)
class _NoReplay:
    """Stands for a replay where a stage of its plan runs elsewhere, which needs nothing of it."""

    name: str
    place: Place
