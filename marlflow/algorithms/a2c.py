"""Advantage actor-critic, A2C (Mnih et al., 2016, arXiv:1602.01783, synchronous).

Collects on-policy rows, estimates advantages, takes one policy-gradient step, and discards the rows. With
`microbatches`, one step averages the gradients of several batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from marlflow.algorithms.algorithm import STOCHASTIC_ACTIONS, Capabilities, LearningAlgorithm
from marlflow.base.ranges import CountOrZero, Discount, LearningRate, Share, SmallCount, Steps, Threshold, Weight
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import EstimatedBatch
from marlflow.batches.critic_input import OWN_OBSERVATION, CriticSees
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.learner.loss import LossFunction, LossTerms
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.losses.policy_gradient import policy_gradient_loss, value_loss
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.stages import Advantages, ApplyGradients, Average, ComputeGradients, Concat, DropStale, Learn, Publish


@dataclass(frozen=True)
class ActorCriticAlgorithm(LearningAlgorithm):
    """Base of A2C and its asynchronous variants."""

    learning_rate: OrSchedule[LearningRate] = 7e-4
    discount: OrSchedule[Discount] = 0.99  #: discount factor per decision of an agent
    value_coefficient: OrSchedule[Weight] = 0.5  #: weight of the value loss
    entropy_coefficient: OrSchedule[Weight] = 0.01  #: weight of the entropy bonus
    max_grad_norm: OrSchedule[Threshold] = 0.5
    optimizer: Optimizer = Adam(eps=1e-5)
    shared_torso: bool = False
    critic_sees: Sequence[CriticSees] = OWN_OBSERVATION
    bootstrap_at_death: bool = False

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> ActorCritic:
        critic_torso = None if self.shared_torso else model
        return ActorCritic(spaces, model, critic_torso, seed, self.critic_sees)

    def losses(self, spaces: Spaces) -> LossFunction:
        return A2CLoss(initial_value(self.value_coefficient), initial_value(self.entropy_coefficient))


@dataclass(frozen=True)
class A2C(ActorCriticAlgorithm):
    """A2C's settings. Sizes are in agent steps of the policy."""

    name: ClassVar[str] = "a2c"
    capabilities: ClassVar[Capabilities] = Capabilities(STOCHASTIC_ACTIONS, "on-policy", EstimatedBatch, critic=True)

    batch_agent_steps: Steps = 400  #: minimum agent steps in a batch
    microbatches: SmallCount = 1  #: batches whose gradients are averaged into one optimizer step
    gae_lambda: OrSchedule[Share] = 1.0  #: generalized advantage estimation: 0 is one-step, 1 is the whole return
    max_staleness: CountOrZero = 0

    @property
    def learner_sees_every_row(self) -> bool:
        # Averaged gradients come without the rows that they were computed from.
        return self.microbatches == 1

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay] = ()) -> Plan:
        estimate = Advantages(initial_value(self.discount), initial_value(self.gae_lambda), self.bootstrap_at_death)
        batches = experience.gather(Concat(agent_steps=self.batch_agent_steps))
        fresh = self.with_stages("fresh", batches.then(DropStale(self.max_staleness), at=learner), learner)
        estimated = self.with_stages("estimated", fresh.then(estimate, at=learner), learner)
        rows = self.with_stages("before_learning", estimated, learner)
        if self.microbatches > 1:
            rows = rows.then(ComputeGradients(), at=learner).gather(Average(self.microbatches))
        learned = rows.then(Learn() if self.microbatches == 1 else ApplyGradients(), at=learner)
        reports = self.with_stages("after_update", learned, learner).then(Publish(), at=learner)
        return Plan("a2c", output=reports, waits_for_rounds=True)


class A2CLoss:
    """Policy gradient, value loss and entropy bonus (Mnih et al., 2016, section 4)."""

    def __init__(self, value_coefficient: float, entropy_coefficient: float) -> None:
        self.coefficients = {"value_coefficient": value_coefficient, "entropy_coefficient": entropy_coefficient}

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.coefficients |= {name: values[name] for name in self.coefficients if name in values}

    def __call__(self, module: ActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        outputs, value = module(minibatch["obs"], minibatch.get("central"))
        mask = minibatch.get("action_mask")
        logp, entropy_by_row = module.actor.log_prob_and_entropy(outputs, minibatch["action"], mask)
        policy = policy_gradient_loss(logp, minibatch["advantage"]).mean()
        # Converts squared errors to the critic's own scale, if it normalizes returns.
        values = module.value_error(value_loss(value, minibatch["value_target"])).mean()
        entropy = entropy_by_row.mean()
        bonus = self.coefficients["entropy_coefficient"] * entropy
        total = policy + self.coefficients["value_coefficient"] * values - bonus
        terms = {"policy": policy.detach(), "value": values.detach(), "entropy": entropy.detach()}
        return LossTerms(total, terms)
