"""Multi-Agent TD3, MATD3 (Ackermann et al., 2019, arXiv:1910.01465).

MADDPG with what TD3 adds to DDPG: two critics for each policy, whose lesser value at a smoothed action of all agents is
the target, and delayed updates of actors and targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.algorithm import Capabilities, Member
from marlflow.algorithms.deterministic_loss import JointDeterministicActorCritic, Smoothing
from marlflow.base.ranges import Discount, LearningRate, Noise, PositiveWeight, SomeShare, Steps, Threshold, Weight
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.batches.joint_segments import JointTransitions
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.stages import SyncTarget


@dataclass(frozen=True)
class MATD3(JointDeterministicActorCritic):
    """MATD3's settings; an update is one optimizer step of the critics of each policy."""

    name: ClassVar[str] = "matd3"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete", "Box"), "off-policy", JointTransitions, replay=True, joint=True
    )
    critics: ClassVar[int] = 2

    learning_rate: OrSchedule[LearningRate] = 1e-3  #: step size of the optimizer, for critics and actors
    discount: Discount = 0.95
    exploration_noise: OrSchedule[Noise] = 0.1
    target_noise: OrSchedule[Noise] = 0.2  #: standard deviation of the noise on Box actions of the target policies
    target_noise_clip: OrSchedule[Threshold] = 0.5  #: maximum of that noise
    gumbel_temperature: PositiveWeight = 1.0
    logit_penalty: Weight = 1e-3
    tau: OrSchedule[SomeShare] = 0.01
    actor_every_updates: Steps = 2  #: updates of the critics per update of the actors and the target networks
    publish_every_updates: Steps = 1
    max_grad_norm: OrSchedule[Threshold] = float("inf")
    optimizer: Optimizer = Adam()

    def sync(self) -> SyncTarget:
        # Targets are delayed as much as the actors.
        return SyncTarget(every=self.actor_every_updates, tau=initial_value(self.tau))

    def losses(self, members: Mapping[str, Member]) -> Sequence[LossGroup]:
        smoothing = Smoothing(initial_value(self.target_noise), initial_value(self.target_noise_clip))
        return self.groups(members, smoothing, actor_every=self.actor_every_updates)
