"""Deep Deterministic Policy Gradient, DDPG (Lillicrap et al., 2016, arXiv:1509.02971).

Stores every row in a replay buffer and trains a critic, and an actor that maximizes it, in an exact ratio to the rows
stored. Exploration noise is independent Gaussian, as good as the paper's (arXiv:1802.09477).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.algorithm import Capabilities
from marlflow.algorithms.deterministic_loss import (
    DeterministicActorLoss,
    DeterministicCriticsLoss,
    DeterministicNetwork,
)
from marlflow.algorithms.off_policy import ReplayActorCritic
from marlflow.base.ranges import (
    ActorLearningRate,
    Discount,
    LearningRate,
    Noise,
    SmallCount,
    SomeShare,
    Steps,
    Threshold,
)
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Transitions
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.policy.torso import TorsoConfig


@dataclass(frozen=True)
class DDPG(ReplayActorCritic):
    """DDPG's settings; an update is one optimizer step of each loss group."""

    name: ClassVar[str] = "ddpg"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Box",), "off-policy", Transitions, replay=True, as_learned="greedy"
    )

    learning_rate: OrSchedule[LearningRate] = 1e-3  #: step size of the optimizer, for the critic
    actor_learning_rate: OrSchedule[ActorLearningRate] = 1e-4  #: step size of the optimizer, for the actor
    discount: Discount = 0.99
    n_step: SmallCount = 1
    #: standard deviation of exploration noise, for actions scaled to -1 to 1
    exploration_noise: OrSchedule[Noise] = 0.1
    tau: OrSchedule[SomeShare] = 0.005
    target_every_updates: Steps = 1
    publish_every_updates: Steps = 10
    max_grad_norm: OrSchedule[Threshold] = float("inf")
    optimizer: Optimizer = Adam()

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> DeterministicNetwork:
        return DeterministicNetwork(spaces, model, 1, initial_value(self.exploration_noise), seed)

    def losses(self, spaces: Spaces) -> Sequence[LossGroup]:
        critics_loss = DeterministicCriticsLoss(math.prod(spaces.action_shape), smoothing=None)
        actor_rate = initial_value(self.actor_learning_rate)
        return (
            LossGroup("critics", lambda module: module.critics.parameters(), critics_loss),
            LossGroup("actor", lambda module: module.actor.parameters(), DeterministicActorLoss(), actor_rate),
        )
