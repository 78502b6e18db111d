"""Asynchronous advantage actor-critic, A3C (Mnih et al., 2016, arXiv:1602.01783, algorithm S3).

Each worker computes gradients of its own fragments. The learner applies each gradient on arrival, and that worker
continues with the resulting weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.a2c import ActorCriticAlgorithm
from marlflow.algorithms.algorithm import STOCHASTIC_ACTIONS, Capabilities
from marlflow.base.ranges import Share
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.batches.batch import EstimatedBatch
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.flow.relocate import Where
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.stages import Advantages, ApplyGradients, ComputeGradients, Publish


@dataclass(frozen=True)
class A3C(ActorCriticAlgorithm):
    """A3C's settings. A batch is one worker's fragment, `rollouts.fragment_env_steps`."""

    name: ClassVar[str] = "a3c"
    capabilities: ClassVar[Capabilities] = Capabilities(STOCHASTIC_ACTIONS, "on-policy", EstimatedBatch, critic=True)
    stages: ClassVar[Mapping[str, Where]] = {"Advantages": "worker", "ComputeGradients": "worker"}

    gae_lambda: OrSchedule[Share] = 1.0  #: generalized advantage estimation: 0 is one-step, 1 is the whole return

    @property
    def learner_sees_every_row(self) -> bool:
        # Gradients are computed on the workers.
        return False

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay] = ()) -> Plan:
        estimate = Advantages(initial_value(self.discount), initial_value(self.gae_lambda), self.bootstrap_at_death)
        reports = (
            experience.then(estimate, at=learner)
            .then(ComputeGradients(), at=learner)
            .then(ApplyGradients(), at=learner)
            .then(Publish(), at=learner)
        )
        return Plan("a3c", output=reports, waits_for_rounds=True)
