"""Twin Delayed DDPG, TD3 (Fujimoto et al., 2018, arXiv:1802.09477).

Stores every row in a replay buffer and trains in an exact ratio to the rows stored: two critics towards the lesser
target value at a smoothed action; less often, an actor that maximizes the first critic, and the targets.
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
    Smoothing,
)
from marlflow.algorithms.off_policy import ReplayActorCritic
from marlflow.base.ranges import Discount, LearningRate, Noise, SmallCount, SomeShare, Steps, Threshold
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Transitions
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.policy.torso import TorsoConfig
from marlflow.stages import SyncTarget


@dataclass(frozen=True)
class TD3(ReplayActorCritic):
    """TD3's settings; an update is one optimizer step of the critics."""

    name: ClassVar[str] = "td3"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Box",), "off-policy", Transitions, replay=True, as_learned="greedy"
    )

    learning_rate: OrSchedule[LearningRate] = 3e-4  #: step size of the optimizer, for critics and actor
    discount: Discount = 0.99
    n_step: SmallCount = 1
    #: standard deviation of exploration noise, for actions scaled to -1 to 1
    exploration_noise: OrSchedule[Noise] = 0.1
    target_noise: OrSchedule[Noise] = 0.2  #: standard deviation of the noise on actions of the target policy
    target_noise_clip: OrSchedule[Threshold] = 0.5  #: maximum of that noise
    tau: OrSchedule[SomeShare] = 0.005
    actor_every_updates: Steps = 2  #: updates of the critics per update of the actor and the target networks
    publish_every_updates: Steps = 10
    max_grad_norm: OrSchedule[Threshold] = float("inf")
    optimizer: Optimizer = Adam()

    def sync(self) -> SyncTarget:
        # Targets are delayed as much as the actor (section 5.2).
        return SyncTarget(every=self.actor_every_updates, tau=initial_value(self.tau))

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> DeterministicNetwork:
        return DeterministicNetwork(spaces, model, 2, initial_value(self.exploration_noise), seed)

    def losses(self, spaces: Spaces) -> Sequence[LossGroup]:
        smoothing = Smoothing(initial_value(self.target_noise), initial_value(self.target_noise_clip))
        critics_loss = DeterministicCriticsLoss(math.prod(spaces.action_shape), smoothing)
        actor_loss, every = DeterministicActorLoss(), self.actor_every_updates
        return (
            LossGroup("critics", lambda module: module.critics.parameters(), critics_loss),
            LossGroup("actor", lambda module: module.actor.parameters(), actor_loss, every=every),
        )
