"""Behavioral cloning, BC (Pomerleau, 1989): increases the likelihood of recorded actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from marlflow.algorithms.algorithm import Capabilities, LearningAlgorithm
from marlflow.base.ranges import LearningRate, SmallCount, Steps, Threshold
from marlflow.base.schedules import OrSchedule
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.learner.loss import LossTerms, Unscheduled
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.losses.imitation import behavioral_cloning_loss
from marlflow.policy.actor_critic import StochasticActor, stochastic_actor
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, Learn, Publish


@dataclass(frozen=True)
class BC(LearningAlgorithm):
    """BC's settings; an update is one optimizer step."""

    name: ClassVar[str] = "bc"
    capabilities: ClassVar[Capabilities] = Capabilities(("Discrete", "Box"), "offline", Batch)

    batch_agent_steps: Steps = 4_000  #: minimum agent steps in a batch
    epochs: SmallCount = 1  #: passes over each batch
    minibatch_agent_steps: Steps = 128  #: agent steps in one optimizer step
    learning_rate: OrSchedule[LearningRate] = 1e-3
    max_grad_norm: OrSchedule[Threshold] = 10.0
    optimizer: Optimizer = Adam()

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        reports = (
            experience.gather(Concat(agent_steps=self.batch_agent_steps))
            .then(Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
            .then(Publish(), at=learner)
        )
        return Plan("bc", output=reports)

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Cloner:
        return Cloner(stochastic_actor(spaces, model, torch.Generator().manual_seed(seed)))

    def losses(self, spaces: Spaces) -> BCLoss:
        return BCLoss()


class BCLoss(Unscheduled):
    """The mean negative log-likelihood of recorded actions."""

    def __call__(self, module: Cloner, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        actor = module.actor
        logp, entropy = actor.log_prob_and_entropy(
            actor(minibatch["obs"]), minibatch["action"], minibatch.get("action_mask")
        )
        loss = behavioral_cloning_loss(logp).mean()
        return LossTerms(loss, {"policy": loss.detach(), "entropy": entropy.mean().detach()})


class Cloner(nn.Module):
    """A network with an `actor` only."""

    def __init__(self, actor: StochasticActor) -> None:
        super().__init__()
        self.actor = actor
