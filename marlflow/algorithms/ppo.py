"""Proximal Policy Optimization, PPO (Schulman et al., 2017, arXiv:1707.06347).

Collects an on-policy batch, estimates advantages (GAE), and trains for several epochs with the clipped surrogate loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from marlflow.algorithms.algorithm import STOCHASTIC_ACTIONS, Capabilities, LearningAlgorithm, TorchAlgorithm
from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.base.ranges import CountOrZero, Discount, LearningRate, Share, SmallCount, Steps, Threshold, Weight
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
from marlflow.stages import Advantages, Concat, DropStale, Learn, Normalize, Publish


@dataclass(frozen=True)
class ClippedSettings(TorchAlgorithm):
    """The settings that PPO, recurrent PPO and HAPPO share; sizes are in agent steps."""

    batch_agent_steps: Steps = 4_000  #: minimum agent steps in a batch
    epochs: SmallCount = 10  #: passes over each batch
    minibatch_agent_steps: Steps = 128  #: agent steps in one optimizer step
    learning_rate: OrSchedule[LearningRate] = 3e-4
    discount: OrSchedule[Discount] = 0.99  #: discount factor per decision of an agent
    gae_lambda: OrSchedule[Share] = 0.95  #: generalized advantage estimation: 0 is one-step, 1 is the whole return
    clip_range: OrSchedule[Threshold] = 0.2  #: probability ratios are clipped to 1 - this and 1 + this
    value_clip_range: Threshold | None = None  #: maximum change of a value from its old one; None: no limit
    value_coefficient: OrSchedule[Weight] = 0.5  #: weight of the value loss
    entropy_coefficient: OrSchedule[Weight] = 0.01  #: weight of the entropy bonus
    max_grad_norm: OrSchedule[Threshold] = 0.5
    optimizer: Optimizer = Adam(eps=1e-5)

    def coefficients(self) -> Coefficients:
        """Return the coefficients of the loss at the start; `set_schedule` gives it later ones."""
        clip, value, entropy = map(initial_value, (self.clip_range, self.value_coefficient, self.entropy_coefficient))
        return Coefficients(clip, value, entropy, self.value_clip_range)


class ClippedAlgorithm(ClippedSettings, LearningAlgorithm):
    """The plan of PPO and recurrent PPO, which have these settings, too."""

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay] = ()) -> Plan:
        estimate = Advantages(initial_value(self.discount), initial_value(self.gae_lambda), self.bootstrap_at_death)
        batches = experience.gather(self.batches())
        fresh = self.with_stages("fresh", batches.then(DropStale(self.max_staleness), at=learner), learner)
        estimated = self.with_stages("estimated", fresh.then(estimate, at=learner), learner)
        rows = self.with_stages("before_learning", self.prepared(estimated, learner), learner)
        learned = rows.then(Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
        reports = self.with_stages("after_update", learned, learner).then(Publish(), at=learner)
        return Plan(self.name, output=reports, waits_for_rounds=True)

    def batches(self) -> Concat:
        """Return the stage that makes batches of rows."""
        return Concat(agent_steps=self.batch_agent_steps)

    def prepared(self, estimated: Flow[EstimatedBatch], learner: Learner) -> Flow[Any]:
        """Return the rows to learn from, given rows with advantages."""
        return estimated.then(Normalize(), at=learner)


@dataclass(frozen=True)
class PPO(ClippedAlgorithm):
    """PPO's settings; an update is one optimizer step."""

    name: ClassVar[str] = "ppo"
    capabilities: ClassVar[Capabilities] = Capabilities(STOCHASTIC_ACTIONS, "on-policy", EstimatedBatch, critic=True)

    shared_torso: bool = False
    critic_sees: Sequence[CriticSees] = OWN_OBSERVATION
    bootstrap_at_death: bool = False
    max_staleness: CountOrZero = 0
    normalize_advantages: bool = True  #: whether advantages are scaled to mean 0 and standard deviation 1 per batch

    def prepared(self, estimated: Flow[EstimatedBatch], learner: Learner) -> Flow[Any]:
        return super().prepared(estimated, learner) if self.normalize_advantages else estimated

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> ActorCritic:
        critic_torso = None if self.shared_torso else model
        return ActorCritic(spaces, model, critic_torso, seed, self.critic_sees)

    def losses(self, spaces: Spaces) -> LossFunction | Sequence[LossGroup]:
        return PPOLoss(self.coefficients())
