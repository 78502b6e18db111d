"""Value-decomposition networks, VDN (Sunehag et al., 2017, arXiv:1706.05296): Q-learning of a team.

The value of a joint action is the sum of the agents' own action values. One loss trains them all by the team's reward,
and each agent acts greedily by its own values. Plan and options are DQN's (`algorithms.dqn`), on joint rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from marlflow.algorithms.algorithm import Capabilities, JointAlgorithm, Member
from marlflow.algorithms.mixing_loss import MixingLoss
from marlflow.base.joint_transitions import JointTransitions
from marlflow.base.schedules import Linear, ScheduledFloat, initial_value
from marlflow.base.spaces import Spaces
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.policy.mixers import MixerInput, SumMixer
from marlflow.policy.q import QActor, QNetwork
from marlflow.policy.team_q import TeamQNetwork
from marlflow.policy.torso import TorsoConfig


@dataclass(frozen=True)
class VDN(JointAlgorithm):
    """VDN's settings; an update is one optimizer step, and agent steps are those of all agents together."""

    name: ClassVar[str] = "vdn"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete",), "off-policy", JointTransitions, replay=True, joint=True
    )
    has_target: ClassVar[bool] = True

    batch_agent_steps: int = 384
    train_every_agent_steps: int = 24
    learning_starts_agent_steps: int = 3_000
    store_agent_steps: int = 1
    replay_agent_steps: int = 300_000
    learning_rate: ScheduledFloat = 5e-4
    discount: float = 0.99
    n_step: int = 3
    team_reward: TeamReward = "mean"
    double: bool = True
    dueling: bool = False
    prioritized: bool = False
    priority_alpha: float = 0.6
    priority_beta: ScheduledFloat = 0.4
    target_every_updates: int = 200
    tau: ScheduledFloat = 1.0
    publish_every_updates: int = 10
    epsilon: ScheduledFloat = Linear(1.0, 0.05, 100_000)
    huber_delta: ScheduledFloat = float("inf")
    max_grad_norm: ScheduledFloat = 10.0
    optimizer: Optimizer = Adam()

    def network(self, members: Mapping[str, Member], seed: int) -> TeamQNetwork:
        actors = {
            name: self.actor(member.spaces, member.model, seed + number)
            for number, (name, member) in enumerate(members.items())
        }
        spaces = {name: member.spaces for name, member in members.items()}
        mixer, seen = self._mixer(spaces, torch.Generator().manual_seed(seed + len(members)))
        return TeamQNetwork(actors, mixer, seen)

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> QActor:
        return QNetwork(spaces, model, self.dueling, seed).actor

    def losses(self, members: Mapping[str, Member]) -> MixingLoss:
        return MixingLoss(self.double, initial_value(self.huber_delta))

    def _mixer(
        self, spaces: Mapping[str, Spaces], generator: torch.Generator
    ) -> tuple[torch.nn.Module, MixerInput | None]:
        return SumMixer(), None
