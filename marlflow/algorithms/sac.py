"""Soft Actor-Critic, SAC (Haarnoja et al., 2018, arXiv:1812.05805); with Discrete actions arXiv:1910.07207.

Stores every row in a replay buffer and trains in an exact ratio to the rows stored: two critics, an actor that
maximizes the lesser value plus entropy, and a temperature that keeps the entropy near its target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import Capabilities
from marlflow.algorithms.off_policy import ReplayActorCritic
from marlflow.algorithms.sac_loss import (
    BoxActorLoss,
    BoxCriticsLoss,
    BoxNetwork,
    DiscreteActorLoss,
    DiscreteCriticsLoss,
    DiscreteNetwork,
    TargetEntropy,
    Temperature,
    TemperatureLoss,
)
from marlflow.base.ranges import (
    Discount,
    Finite,
    LearningRate,
    PositiveWeight,
    Share,
    SomeShare,
    Steps,
    Threshold,
    Weight,
)
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Transitions
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.policy.torso import TorsoConfig


@dataclass(frozen=True)
class SAC(ReplayActorCritic):
    """SAC's settings; an update is one optimizer step of each loss group."""

    name: ClassVar[str] = "sac"
    capabilities: ClassVar[Capabilities] = Capabilities(("Discrete", "Box"), "off-policy", Transitions, replay=True)

    learning_rate: OrSchedule[LearningRate] = 3e-4  #: step size of the optimizer, for critics, actor and temperature
    discount: Discount = 0.99
    temperature: OrSchedule[Weight] | None = None  #: weight of the entropy, reward per nat; None: learned
    initial_temperature: PositiveWeight = 1.0  #: initial value of a learned temperature
    #: target of a learned temperature, nats; None: -1 per Box component, or target_entropy_share
    target_entropy: Finite | None = None
    target_entropy_share: Share = 0.5  #: target for Discrete actions, as a share of the maximum entropy
    tau: OrSchedule[SomeShare] = 0.005
    target_every_updates: Steps = 1
    publish_every_updates: Steps = 10
    max_grad_norm: OrSchedule[Threshold] = float("inf")
    optimizer: Optimizer = Adam()

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> BoxNetwork | DiscreteNetwork:
        if isinstance(spaces.action, gym.Box):
            return BoxNetwork(spaces, spaces.action, model, self.initial_temperature, seed)
        return DiscreteNetwork(spaces, model, self.initial_temperature, seed)

    def losses(self, spaces: Spaces) -> Sequence[LossGroup]:
        temperature = Temperature(None if self.temperature is None else initial_value(self.temperature))
        critics_loss: BoxCriticsLoss | DiscreteCriticsLoss
        actor_loss: BoxActorLoss | DiscreteActorLoss
        if isinstance(spaces.action, gym.Box):
            size = math.prod(spaces.action_shape)
            critics_loss = BoxCriticsLoss(temperature, size)
            actor_loss = BoxActorLoss(temperature, size, -size if self.target_entropy is None else self.target_entropy)
        else:
            critics_loss = DiscreteCriticsLoss(temperature)
            actor_loss = DiscreteActorLoss(temperature, TargetEntropy(self.target_entropy, self.target_entropy_share))
        # In this order: the temperature's loss reads the entropy that the actor's loss computed.
        groups = [
            LossGroup("critics", lambda module: module.critics.parameters(), critics_loss),
            LossGroup("actor", lambda module: module.actor.parameters(), actor_loss),
        ]
        # A fixed temperature is not trained.
        if temperature.fixed is None:
            loss = TemperatureLoss()
            groups.append(LossGroup("temperature", lambda module: [module.log_temperature], loss))
        return groups
