"""Multi-Agent Deep Deterministic Policy Gradient, MADDPG (Lowe et al., 2017, arXiv:1706.02275).

DDPG for several agents, which may be of several policies and may be opponents: a policy's critic values each of its
agents' own return, given what all agents of the learner see and do; actors see their own observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from marlflow.algorithms.algorithm import Capabilities, Member
from marlflow.algorithms.joint_actor_critic import JointActorCritic, Others
from marlflow.algorithms.joint_deterministic import (
    JointActorSettings,
    JointDeterministicNetwork,
    deterministic_actor,
    deterministic_groups,
)
from marlflow.base.ranges import (
    ActorLearningRate,
    Discount,
    LearningRate,
    Noise,
    PositiveWeight,
    SomeShare,
    Steps,
    StepsOrZero,
    Threshold,
    Weight,
)
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.joint_segments import JointTransitions
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.policy.joint_critics import JointCriticSees
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.torso import TorsoConfig


@dataclass(frozen=True)
class MADDPG(JointActorCritic):
    """MADDPG's settings; an update is one optimizer step of each loss group of each policy."""

    name: ClassVar[str] = "maddpg"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete", "Box"), "off-policy", JointTransitions, replay=True, joint=True
    )

    critic_sees: Sequence[JointCriticSees] = ("observations",)
    others: Others = "replay"
    batch_agent_steps: Steps = 512
    train_every_agent_steps: Steps = 32
    learning_starts_agent_steps: StepsOrZero = 4_000
    store_agent_steps: Steps = 1
    replay_agent_steps: Steps = 200_000
    learning_rate: OrSchedule[LearningRate] = 1e-3
    actor_learning_rate: OrSchedule[ActorLearningRate] = 1e-3
    discount: Discount = 0.95
    exploration_noise: OrSchedule[Noise] = 0.1
    gumbel_temperature: PositiveWeight = 1.0
    logit_penalty: Weight = 1e-3
    tau: OrSchedule[SomeShare] = 0.01
    target_every_updates: Steps = 1
    publish_every_updates: Steps = 1
    max_grad_norm: OrSchedule[Threshold] = float("inf")
    optimizer: Optimizer = Adam()

    def network(self, members: Mapping[str, Member], seed: int) -> JointDeterministicNetwork:
        return JointDeterministicNetwork(members, self.critic_sees, 1, initial_value(self.exploration_noise), seed)

    def policy_actor(self, spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> NetworkActor:
        return deterministic_actor(spaces, model, initial_value(self.exploration_noise), generator)

    def losses(self, members: Mapping[str, Member]) -> Sequence[LossGroup]:
        settings = JointActorSettings(self.others, self.gumbel_temperature, self.logit_penalty)
        return deterministic_groups(members, self.discount, None, settings, initial_value(self.actor_learning_rate))
