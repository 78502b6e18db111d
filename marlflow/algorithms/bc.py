"""Behavioural cloning (Pomerleau, 1989): what a recorded expert did is made likely.

Gathers recorded rows, takes a few steps up their likelihood, publishes, and forgets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from marlflow.algorithms.algorithm import Capabilities, LearningAlgorithm
from marlflow.base.batch import Batch
from marlflow.base.items import Fragment
from marlflow.base.schedules import Setting
from marlflow.base.spaces import Spaces
from marlflow.flow import Flow, Plan
from marlflow.learn.loss import LossTerms
from marlflow.learn.optimizer import Adam, Optimizer
from marlflow.learn.protocol import Learner
from marlflow.losses.imitation import behavioural_cloning_loss
from marlflow.policy.actor_critic import StochasticActor, stochastic_actor
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, Learn, Publish


@dataclass(frozen=True)
class BC(LearningAlgorithm):
    """BC's settings. Sizes are in agent steps that were recorded; one update is one optimiser step."""

    name: ClassVar[str] = "bc"
    capabilities: ClassVar[Capabilities] = Capabilities(("Discrete", "Box"), "offline", Batch)

    batch_agent_steps: int = 4_000
    epochs: int = 1
    minibatch_agent_steps: int = 128
    learning_rate: Setting = 1e-3
    max_grad_norm: Setting = 10.0
    optimiser: Optimizer = Adam()

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        """From experience to weights."""
        reports = (
            experience.gather(Concat(agent_steps=self.batch_agent_steps))
            .then(Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
            .then(Publish(), at=learner)
        )
        return Plan("bc", output=reports)

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Cloner:
        """An actor alone, whose distribution is categorical or Gaussian."""
        return Cloner(stochastic_actor(spaces, model, torch.Generator().manual_seed(seed)))

    def losses(self, spaces: Spaces) -> BCLoss:
        """The negative log-likelihood of the recorded actions."""
        return BCLoss()


class BCLoss:
    """The mean negative log-likelihood of the recorded actions."""

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of this loss is scheduled."""

    def __call__(self, module: Cloner, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of a minibatch of a Batch."""
        actor = module.actor
        logp, entropy = actor.log_prob_and_entropy(
            actor(minibatch["obs"]), minibatch["action"], minibatch.get("action_mask")
        )
        loss = behavioural_cloning_loss(logp).mean()
        return LossTerms(loss, {"policy": loss.detach(), "entropy": entropy.mean().detach()})


class Cloner(nn.Module):
    """`actor` is all that there is."""

    def __init__(self, actor: StochasticActor) -> None:
        super().__init__()
        self.actor = actor
