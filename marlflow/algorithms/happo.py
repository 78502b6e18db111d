"""Heterogeneous-agent PPO, HAPPO (Kuba et al., 2022, arXiv:2109.11251): PPO of several policies, one after another.

All policies have one central critic. They are updated in random order, each on advantages that account for how the
policies before it have changed. With one policy, and the same `critic_sees`, it is MAPPO.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch

from marlflow.algorithms.algorithm import STOCHASTIC_ACTIONS, Capabilities, JointAlgorithm, Member
from marlflow.algorithms.joint_actor_critic import actor_of
from marlflow.algorithms.part import Part
from marlflow.algorithms.pop_art import PopArt
from marlflow.algorithms.ppo import ClippedSettings
from marlflow.algorithms.ppo_loss import ActorLoss, CriticLoss, FirstPolicyLoss
from marlflow.base.errors import ConfigInvalid, Problem
from marlflow.base.ranges import CountOrZero, LearningRate, SmallCount, Steps
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces, describe_space
from marlflow.batches.critic_input import CriticSees, critic_input, critic_input_problems
from marlflow.batches.items import Fragment
from marlflow.batches.joint import EstimatedJointBatches, JointBatches
from marlflow.flow import Flow, Plan
from marlflow.learner.loss import LossFunction
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.protocol import Learner
from marlflow.policy.actor_critic import StochasticActor, TeamActorCritic, critic_body, stochastic_actor
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, DropStale, EachPolicy, JointAdvantages, LearnInOrder, Publish


@dataclass(frozen=True)
class HAPPO(ClippedSettings, JointAlgorithm):
    """HAPPO's settings; an update is one optimizer step of one policy's actor and the critic."""

    name: ClassVar[str] = "happo"
    capabilities: ClassVar[Capabilities] = Capabilities(
        STOCHASTIC_ACTIONS, "on-policy", EstimatedJointBatches, critic=True, joint=True
    )

    epochs: SmallCount = 10  #: passes over each batch, in each policy's turn
    minibatch_agent_steps: Steps = 2_000
    learning_rate: OrSchedule[LearningRate] = 5e-4
    #: input of the critic: state (of the environment), agent (id), obs (if of one space)
    critic_sees: Sequence[CriticSees] = ("state", "agent")
    bootstrap_at_death: bool = False
    max_staleness: CountOrZero = 0
    parts: Mapping[str, Part | None] = field(default_factory=lambda: {"values": PopArt()}, kw_only=True, hash=False)

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        estimate = JointAdvantages(
            initial_value(self.discount), initial_value(self.gae_lambda), self.bootstrap_at_death
        )
        # Batches of a joint stream are opened by policy.
        rows = cast("Flow[JointBatches]", experience.gather(Concat(agent_steps=self.batch_agent_steps)))
        reports = (
            rows.then(EachPolicy(DropStale(self.max_staleness)), at=learner)
            .then(estimate, at=learner)
            .then(LearnInOrder(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
            .then(Publish(), at=learner)
        )
        return Plan(self.name, output=reports, waits_for_rounds=True)

    def network(self, members: Mapping[str, Member], seed: int) -> TeamActorCritic:
        spaces = {name: member.spaces for name, member in members.items()}
        models = {name: member.model for name, member in members.items()}
        return TeamActorCritic(spaces, models, seed, self.critic_sees)

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> StochasticActor:
        # Without the critic, which may need a state that the spaces of opponents do not have.
        return stochastic_actor(spaces, model, torch.Generator().manual_seed(seed))

    def losses(self, members: Mapping[str, Member]) -> LossFunction | Sequence[LossGroup]:
        coefficients = self.coefficients()
        if len(members) == 1:
            return FirstPolicyLoss(coefficients)
        # The critic is trained in every policy's turn, an actor only in its own.
        actors = [
            LossGroup(f"actor {name}", actor_of(name), ActorLoss(name, coefficients), policy=name) for name in members
        ]
        return [*actors, LossGroup("critic", TeamActorCritic.critic_parameters, CriticLoss(coefficients))]

    def member_problems(self, members: Mapping[str, Member]) -> Iterator[Problem]:
        observations = {name: describe_space(member.spaces.observation) for name, member in members.items()}
        first = next(iter(members.values())).spaces.observation
        if "obs" in self.critic_sees and any(member.spaces.observation != first for member in members.values()):
            listed = ", ".join(f"{name!r} {space}" for name, space in observations.items())
            message = f"has one critic of all policies, which see different spaces ({listed})"
            yield Problem(message, self.name, remedy="leave obs out of algorithm.critic_sees")
            return
        policy, member = next(iter(members.items()))
        if critic_input_problems(member.spaces, self.critic_sees):
            return
        seen, generator = critic_input(member.spaces, self.critic_sees), torch.Generator().manual_seed(0)
        try:
            critic_body(member.spaces, seen, member.model, generator)
        except ConfigInvalid:
            layers = f"has a critic with layers like the model of its first policy, {policy!r}"
            message = f"{layers}, and {type(member.model).__name__} cannot see {' and '.join(self.critic_sees)} alone"
            remedy = "add obs to algorithm.critic_sees, or list a policy first whose model is mlp"
            yield Problem(message, self.name, remedy=remedy)
