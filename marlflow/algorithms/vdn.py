"""Value-decomposition networks, VDN (Sunehag et al., 2017, arXiv:1706.05296): Q-learning of a team.

The value of a joint action is the sum of the agents' own action values. One loss trains them all by the team's reward,
and each agent acts greedily by its own values. Plan and options are DQN's (`algorithms.dqn`), on joint rows. With
recurrent models the replay has sequences, whose burn-in and priorities are R2D2's (`algorithms.r2d2`), and targets are
Peng's lambda returns instead of n-step ones (`losses.mixing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from marlflow.algorithms.algorithm import Capabilities, Member
from marlflow.algorithms.mixing_loss import MixingLoss, RecurrentMixingLoss
from marlflow.algorithms.off_policy import JointOffPolicyAlgorithm, JointReplay, JointReplayPlan
from marlflow.base.ranges import Discount, LearningRate, Share, SmallCount, SomeShare, Steps, StepsOrZero, Threshold
from marlflow.base.schedules import Linear, OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.joint_segments import JointSequenceTransitions, JointTransitions, TeamReward
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.policy.actor import Actor
from marlflow.policy.mixers import MixerInput, RecurrentTeamQNetwork, SumMixer, TeamQNetwork
from marlflow.policy.q import QNetwork
from marlflow.policy.recurrent import RecurrentQNetwork, RecurrentTorsoConfig
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.sampling import Prioritized, Uniform

# The maximum of a sum takes the best of each term: with DQN's spread of 1 it would be above all returns where rewards
# are rare and small, and each update of the target network takes off only the discount.
_FIRST_SPREAD = 0.01


@dataclass(frozen=True)
class VDN(JointReplayPlan):
    """VDN's settings; an update is one optimizer step, and agent steps are summed over all agents."""

    name: ClassVar[str] = "vdn"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete",), "off-policy", JointTransitions, replay=True, joint=True, memory="optional", as_learned="greedy"
    )
    reprioritizes: ClassVar[bool] = True

    batch_agent_steps: Steps = 384  #: agent steps drawn for an update: with 3 agents, 128 env steps of the team
    train_every_agent_steps: Steps = 24
    learning_starts_agent_steps: StepsOrZero = 3_000  #: agent steps stored before the first update
    replay_agent_steps: Steps = 300_000
    learning_rate: OrSchedule[LearningRate] = 5e-4
    discount: Discount = 0.99
    n_step: SmallCount = 3  #: env steps whose rewards are summed before the bootstrap
    team_reward: TeamReward = "mean"  #: reward of the team: mean or sum of the present agents' rewards
    #: with memory (model gru or lstm): maximum steps of each agent in a trained sequence
    sequence_agent_steps: Steps = 20
    burn_in_agent_steps: StepsOrZero = 10  #: with memory: steps before it, on which the memory is only refreshed
    td_lambda: Share = 0.6  #: with memory: lambda of the returns, in place of n_step; 0 is one-step
    double: bool = True  #: double Q-learning
    dueling: bool = False  #: separate streams for value and advantages
    prioritized: bool = False  #: sample the team's env steps by their TD errors; False: uniformly
    priority_alpha: Share = 0.6  #: exponent of the priorities; 0 is uniform
    priority_beta: OrSchedule[Share] = 0.4  #: exponent of the importance weights; 1 corrects fully
    priority_max_share: Share = 0.9  #: with memory: share of a sequence's largest error in its priority, not the mean's
    target_every_updates: Steps = 200
    tau: OrSchedule[SomeShare] = 1.0
    publish_every_updates: Steps = 10
    epsilon: OrSchedule[Share] = Linear(1.0, 0.05, 100_000)  #: probability of a random action: a number or a schedule
    #: error at which the loss changes from quadratic to linear; infinite (.inf): never
    huber_delta: OrSchedule[Threshold] = float("inf")
    max_grad_norm: OrSchedule[Threshold] = 10.0
    optimizer: Optimizer = Adam()

    def network(self, members: Mapping[str, Member], seed: int) -> TeamQNetwork:
        actors = {
            name: self._network(member.spaces, member.model, seed + number).actor
            for number, (name, member) in enumerate(members.items())
        }
        mixer, seen = self._mixer(members, torch.Generator().manual_seed(seed + len(members)))
        is_recurrent = self.trains_on(members) is JointSequenceTransitions
        return (RecurrentTeamQNetwork if is_recurrent else TeamQNetwork)(actors, mixer, seen)

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        return self._network(spaces, model, seed).actor

    def losses(self, members: Mapping[str, Member]) -> MixingLoss | RecurrentMixingLoss:
        delta = initial_value(self.huber_delta)
        if self.trains_on(members) is not JointSequenceTransitions:
            return MixingLoss(self.double, delta)
        return RecurrentMixingLoss(
            self.burn_in_agent_steps, self.td_lambda, self.double, delta, self.priority_max_share
        )

    def replay(self, name: str, members: Mapping[str, Member], seed: int) -> JointReplay:
        # Lambda returns are made of one-step rewards, by the loss.
        settings = replace(self, n_step=1) if self.trains_on(members) is JointSequenceTransitions else self
        return JointOffPolicyAlgorithm.replay(settings, name, members, seed)

    def sampling(self) -> Uniform | Prioritized:
        return Prioritized(self.priority_alpha, initial_value(self.priority_beta)) if self.prioritized else Uniform()

    def _network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> QNetwork | RecurrentQNetwork:
        network = RecurrentQNetwork if isinstance(model, RecurrentTorsoConfig) else QNetwork
        return network(spaces, model, self.dueling, seed, gain=_FIRST_SPREAD)

    def _mixer(
        self, members: Mapping[str, Member], generator: torch.Generator
    ) -> tuple[torch.nn.Module, MixerInput | None]:
        return SumMixer(), None
