"""Value-decomposition networks, VDN (Sunehag et al., 2017, arXiv:1706.05296): Q-learning of a team.

The value of a joint action is the sum of the agents' own action values. One loss trains them all by the team's reward,
and each agent acts greedily by its own values. Plan and options are DQN's (`algorithms.dqn`), on joint rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from marlflow.algorithms.algorithm import Capabilities, Member
from marlflow.algorithms.mixing_loss import MixingLoss
from marlflow.algorithms.off_policy import JointOffPolicyAlgorithm
from marlflow.base.items import Fragment
from marlflow.base.joint_segments import TeamReward
from marlflow.base.joint_transitions import JointTransitions
from marlflow.base.schedules import Linear, ScheduledFloat, initial_value
from marlflow.base.spaces import Spaces
from marlflow.flow import AgentSteps, Flow, InTurn, Plan, source
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.policy.mixers import MixerInput, SumMixer
from marlflow.policy.q import QActor, QNetwork
from marlflow.policy.team_q import TeamQNetwork
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.replay.sampling import Prioritized, Uniform
from marlflow.stages import Concat, Draw, Insert, JoinSegments, Learn, NStep, Publish, Reprioritize, SyncTarget


@dataclass(frozen=True)
class VDN(JointOffPolicyAlgorithm):
    """VDN's settings; an update is one optimizer step, and agent steps are those of all agents together."""

    name: ClassVar[str] = "vdn"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete",), "off-policy", JointTransitions, replay=True, joint=True
    )

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

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        (replay,) = replays
        store = (
            experience.gather(Concat(agent_steps=self.store_agent_steps))
            .then(JoinSegments(learner.seats, self.team_reward), at=replay)
            .then(NStep(self.n_step, self.discount), at=replay)
            .then(Insert(), at=replay)
        )
        train = (
            source(Draw(self.batch_agent_steps, gives=JointTransitions), at=replay)
            .then(Learn(), at=learner)
            .then(SyncTarget(every=self.target_every_updates, tau=initial_value(self.tau)), at=learner)
            .then(Publish(every=self.publish_every_updates), at=learner)
            .then(Reprioritize(), at=replay)
        )
        ratio = InTurn(store=AgentSteps(self.train_every_agent_steps, self.learning_starts_agent_steps), output=1)
        return Plan(self.name, output=train, also={"store": store}, pace=ratio)

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

    def sampling(self) -> Uniform | Prioritized:
        return Prioritized(self.priority_alpha, initial_value(self.priority_beta)) if self.prioritized else Uniform()

    def _mixer(
        self, spaces: Mapping[str, Spaces], generator: torch.Generator
    ) -> tuple[torch.nn.Module, MixerInput | None]:
        return SumMixer(), None
