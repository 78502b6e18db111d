"""Monotonic advantage re-weighted imitation learning, MARWIL (Wang et al., 2018, NeurIPS).

Learns from recorded rows of any quality: estimates advantages from returns and the critic, and increases the likelihood
of actions that did better than expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from marlflow.algorithms.algorithm import Capabilities, LearningAlgorithm
from marlflow.base.ranges import Discount, LearningRate, PositiveWeight, Share, SmallCount, Steps, Threshold, Weight
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import EstimatedBatch
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.learner.loss import LossTerms
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.losses.imitation import exponential_imitation_loss, moving_average
from marlflow.losses.policy_gradient import value_loss
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.stages import Advantages, Concat, Learn, Publish

_SMALLEST_SCALE = 1e-8


@dataclass(frozen=True)
class MARWIL(LearningAlgorithm):
    """MARWIL's settings; an update is one optimizer step.

    Value targets are returns (GAE with lambda 1), bootstrapped at a segment's end.
    """

    name: ClassVar[str] = "marwil"
    capabilities: ClassVar[Capabilities] = Capabilities(("Discrete", "Box"), "offline", EstimatedBatch, critic=True)

    batch_agent_steps: Steps = 4_000  #: minimum agent steps in a batch
    epochs: SmallCount = 1  #: passes over each batch
    minibatch_agent_steps: Steps = 128  #: agent steps in one optimizer step
    learning_rate: OrSchedule[LearningRate] = 1e-3
    discount: OrSchedule[Discount] = 0.99  #: discount factor per decision of an agent
    beta: OrSchedule[Weight] = 1.0  #: exponent of the advantages in row weights; 0 is behavioral cloning
    max_weight: OrSchedule[Threshold] = 20.0  #: maximum weight of a row
    value_coefficient: OrSchedule[Weight] = 1.0  #: weight of the value loss
    scale_start: PositiveWeight = 1.0  #: initial scale of the advantages, in units of return
    scale_rate: Share = 0.1  #: share of each batch in the moving mean square of advantages
    max_grad_norm: OrSchedule[Threshold] = 10.0
    optimizer: Optimizer = Adam()

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        reports = (
            experience.gather(Concat(agent_steps=self.batch_agent_steps))
            .then(Advantages(initial_value(self.discount), gae_lambda=1.0), at=learner)
            .then(Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
            .then(Publish(), at=learner)
        )
        return Plan("marwil", output=reports)

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Imitator:
        return Imitator(spaces, model, self.scale_start, self.scale_rate, seed)

    def losses(self, spaces: Spaces) -> MARWILLoss:
        names = ("beta", "max_weight", "value_coefficient")
        return MARWILLoss({name: initial_value(getattr(self, name)) for name in names})


class Imitator(ActorCritic):
    """An actor-critic with a moving average of squared advantages, `mean_square`, []."""

    def __init__(self, spaces: Spaces, model: TorsoConfig, scale_start: float, scale_rate: float, seed: int) -> None:
        super().__init__(spaces, model, model, seed)
        # A parameter without gradient, so that it is saved and shared with the network's.
        self.mean_square = nn.Parameter(torch.tensor(scale_start**2), requires_grad=False)
        self._scale_rate = scale_rate

    def observe(self, columns: Mapping[str, Tensor]) -> None:
        """Move the average by `scale_rate` towards a batch's, after training on it."""
        with torch.no_grad():
            self.mean_square.copy_(moving_average(self.mean_square, columns["advantage"].square(), self._scale_rate))


class MARWILLoss:
    """The exponentially weighted log-likelihood, and the critic's squared error."""

    def __init__(self, settings: Mapping[str, float]) -> None:
        self.settings = dict(settings)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.settings |= {name: value for name, value in values.items() if name in self.settings}

    def __call__(self, module: Imitator, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        now = self.settings
        outputs, value = module(minibatch["obs"])
        mask, return_t = minibatch.get("action_mask"), minibatch["value_target"]
        logp, entropy = module.actor.log_prob_and_entropy(outputs, minibatch["action"], mask)
        advantage = (return_t - value).detach()
        scale = module.mean_square.sqrt() + _SMALLEST_SCALE
        policy = exponential_imitation_loss(logp, advantage, scale, now["beta"], now["max_weight"]).mean()
        values = module.value_error(value_loss(value, return_t)).mean()
        terms = {"policy": policy, "value": values, "entropy": entropy.mean(), "scale": scale}
        metrics = {name: term.detach() for name, term in terms.items()}
        return LossTerms(policy + now["value_coefficient"] * values, metrics)
