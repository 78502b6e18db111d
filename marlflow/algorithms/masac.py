"""Multi-Agent Soft Actor-Critic, MASAC: SAC (Haarnoja et al., 2018, arXiv:1812.05805) with the critics of MADDPG.

Each policy has two critics, which see what all agents of the learner see and do (Lowe et al., 2017, arXiv:1706.02275),
an actor that maximizes the lesser value plus entropy, and a temperature of its own. With Discrete actions, critics
value all actions of an agent given the others' (arXiv:1910.07207).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from marlflow.algorithms.algorithm import Capabilities, Member
from marlflow.algorithms.joint_actor_critic import JointActorCritic, TermNames, actor_of, critics_of
from marlflow.algorithms.joint_soft import (
    JointSoftActorLoss,
    JointSoftCriticsLoss,
    JointSoftNetwork,
    JointTemperatureLoss,
    soft_actor,
    soft_noise,
    temperature_of,
)
from marlflow.algorithms.sac_loss import TargetEntropy, Temperature
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
from marlflow.batches.joint_segments import JointTransitions
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.policy.actor import NetworkActor
from marlflow.policy.torso import TorsoConfig


@dataclass(frozen=True)
class MASAC(JointActorCritic):
    """MASAC's settings; an update is one optimizer step of each loss group of each policy."""

    name: ClassVar[str] = "masac"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete", "Box"), "off-policy", JointTransitions, replay=True, joint=True
    )

    learning_rate: OrSchedule[LearningRate] = 3e-4  #: step size of the optimizer, for critics, actors and temperatures
    discount: Discount = 0.95
    #: weight of the entropy, reward per nat; None: learned, one for each policy
    temperature: OrSchedule[Weight] | None = None
    initial_temperature: PositiveWeight = 1.0  #: initial value of a learned temperature
    target_entropy: Finite | None = None  #: its target, nats; None: -1 per Box component, or target_entropy_share
    target_entropy_share: Share = 0.5  #: target for Discrete actions, as a share of the maximum entropy
    tau: OrSchedule[SomeShare] = 0.01
    target_every_updates: Steps = 1
    publish_every_updates: Steps = 1
    max_grad_norm: OrSchedule[Threshold] = float("inf")
    optimizer: Optimizer = Adam()

    def network(self, members: Mapping[str, Member], seed: int) -> JointSoftNetwork:
        return JointSoftNetwork(members, self.critic_sees, self.initial_temperature, seed)

    def policy_actor(self, spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> NetworkActor:
        return soft_actor(spaces, model, generator)

    def losses(self, members: Mapping[str, Member]) -> Sequence[LossGroup]:
        noise, groups = soft_noise(members), list[LossGroup]()
        for policy in members:
            temperature = Temperature(None if self.temperature is None else initial_value(self.temperature))
            names = TermNames(policy, members)
            critics = JointSoftCriticsLoss(policy, self.discount, temperature, noise, names)
            entropy = TargetEntropy(self.target_entropy, self.target_entropy_share)
            actor = JointSoftActorLoss(policy, self.others, temperature, entropy, noise, names)
            groups.append(LossGroup(names.of("critics"), critics_of(policy), critics))
            groups.append(LossGroup(names.of("actor"), actor_of(policy), actor))
            # A fixed temperature is not trained. A learned one's loss reads the entropy that the actor's computed.
            if temperature.fixed is None:
                parameters = temperature_of(policy)
                groups.append(LossGroup(names.of("temperature"), parameters, JointTemperatureLoss(actor)))
        return groups
