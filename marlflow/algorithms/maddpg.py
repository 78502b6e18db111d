"""Multi-Agent Deep Deterministic Policy Gradient, MADDPG (Lowe et al., 2017, arXiv:1706.02275).

DDPG for several agents, which may be of several policies and may be opponents: a policy's critic values each of its
agents' own return, given what all agents of the learner see and do; actors see their own observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.algorithm import Capabilities, Member
from marlflow.algorithms.deterministic_loss import JointDeterministicActorCritic
from marlflow.base.ranges import (
    ActorLearningRate,
    Discount,
    LearningRate,
    Noise,
    PositiveWeight,
    SomeShare,
    Steps,
    Threshold,
    Weight,
)
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.batches.joint_segments import JointTransitions
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.optimizer import Adam, Optimizer


@dataclass(frozen=True)
class MADDPG(JointDeterministicActorCritic):
    """MADDPG's settings; an update is one optimizer step of each loss group of each policy."""

    name: ClassVar[str] = "maddpg"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete", "Box"), "off-policy", JointTransitions, replay=True, joint=True
    )

    learning_rate: OrSchedule[LearningRate] = 1e-3  #: step size of the optimizer, for critics
    actor_learning_rate: OrSchedule[ActorLearningRate] = 1e-3  #: step size of the optimizer, for actors
    discount: Discount = 0.95
    exploration_noise: OrSchedule[Noise] = 0.1
    gumbel_temperature: PositiveWeight = 1.0
    logit_penalty: Weight = 1e-3
    tau: OrSchedule[SomeShare] = 0.01
    target_every_updates: Steps = 1
    publish_every_updates: Steps = 1
    max_grad_norm: OrSchedule[Threshold] = float("inf")
    optimizer: Optimizer = Adam()

    def losses(self, members: Mapping[str, Member]) -> Sequence[LossGroup]:
        return self.groups(members, None, initial_value(self.actor_learning_rate))
