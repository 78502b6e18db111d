"""Proximal Policy Optimization, PPO (Schulman et al., 2017, arXiv:1707.06347).

Collects an on-policy batch, estimates advantages (GAE), and trains for several epochs with the clipped surrogate loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.algorithm import STOCHASTIC_ACTIONS, Capabilities, LearningAlgorithm
from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.base.ranges import (
    CountOrZero,
    Discount,
    LearningRate,
    Share,
    SmallCount,
    Steps,
    Threshold,
    Weight,
)
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import EstimatedBatch
from marlflow.batches.critic_input import OWN_OBSERVATION, CriticSees
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.learner.loss import LossFunction
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.stages import (
    Advantages,
    Concat,
    DropStale,
    Learn,
    Normalize,
    Publish,
)


@dataclass(frozen=True)
class PPO(LearningAlgorithm):
    """PPO's settings; an update is one optimizer step."""

    name: ClassVar[str] = "ppo"
    capabilities: ClassVar[Capabilities] = Capabilities(STOCHASTIC_ACTIONS, "on-policy", EstimatedBatch)

    batch_agent_steps: Steps = 4_000
    epochs: SmallCount = 10
    minibatch_agent_steps: Steps = 128
    learning_rate: OrSchedule[LearningRate] = 3e-4
    discount: OrSchedule[Discount] = 0.99
    gae_lambda: OrSchedule[Share] = 0.95
    clip_range: OrSchedule[Threshold] = 0.2
    value_clip_range: Threshold | None = None
    value_coefficient: OrSchedule[Weight] = 0.5
    entropy_coefficient: OrSchedule[Weight] = 0.01
    max_grad_norm: OrSchedule[Threshold] = 0.5
    optimizer: Optimizer = Adam(eps=1e-5)
    shared_torso: bool = False
    normalize_values: bool = False
    critic_sees: Sequence[CriticSees] = OWN_OBSERVATION
    bootstrap_at_death: bool = False
    max_staleness: CountOrZero = 0
    normalize_advantages: bool = True

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        estimate = Advantages(initial_value(self.discount), initial_value(self.gae_lambda), self.bootstrap_at_death)
        batches = experience.gather(Concat(agent_steps=self.batch_agent_steps))
        fresh = self.with_stages("fresh", batches.then(DropStale(self.max_staleness), at=learner), learner)
        estimated = self.with_stages("estimated", fresh.then(estimate, at=learner), learner)
        if self.normalize_advantages:
            estimated = estimated.then(Normalize(), at=learner)
        learn = Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps)
        learned = self.with_stages("before_learning", estimated, learner).then(learn, at=learner)
        reports = self.with_stages("after_update", learned, learner).then(Publish(), at=learner)
        return Plan(self.name, output=reports, waits_for_rounds=True)

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> ActorCritic:
        critic_torso = None if self.shared_torso else model
        return ActorCritic(spaces, model, critic_torso, seed, self.normalize_values, self.critic_sees)

    def losses(self, spaces: Spaces) -> LossFunction | Sequence[LossGroup]:
        # Initial values; set_schedule gives the loss later ones.
        clip, value, entropy = map(initial_value, (self.clip_range, self.value_coefficient, self.entropy_coefficient))
        return PPOLoss(Coefficients(clip, value, entropy, self.value_clip_range))
