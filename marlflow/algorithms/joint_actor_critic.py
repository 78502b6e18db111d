"""Base of MADDPG, MATD3 and MASAC, off-policy actor-critics of several policies with central critics.

Also what their losses share: others' actions, targets for each agent, noise, names of terms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from marlflow.algorithms.algorithm import Member, TorchAlgorithm
from marlflow.algorithms.off_policy import JointOffPolicyActorCritic, JointReplayPlan
from marlflow.base.errors import Problem
from marlflow.base.ranges import Steps, StepsOrZero
from marlflow.base.spaces import Spaces
from marlflow.learner.loss import LossTerms
from marlflow.losses.deterministic_policy_gradient import critics_loss
from marlflow.losses.mixing import mean_over_present, row_means
from marlflow.policy.actor import NetworkActor
from marlflow.policy.joint_critics import JointCriticSees, JointView
from marlflow.policy.policy_modules import Prefix
from marlflow.policy.torso import NestedTorsoConfig, TorsoConfig, normalizes
from marlflow.policy.warmup import WarmupActor

Others: TypeAlias = Literal["replay", "policies"]
"""Where an actor's loss takes the other agents' actions from: those stored, or those of their policies now."""


def joint_view(
    members: Mapping[str, Member], sees: Sequence[JointCriticSees], values_all: Collection[str] = ()
) -> JointView:
    """Build the view of the critics of all members; see JointView."""
    normalized = {policy for policy, one in members.items() if normalizes(one.model)}
    return JointView({policy: one.spaces for policy, one in members.items()}, sees, values_all, normalized)


class SeatNoise:
    """Divides a joint row's standard normal numbers among agents: `widths[p]` for each agent of policy `p`."""

    def __init__(self, members: Mapping[str, Member], widths: Mapping[str, int]) -> None:
        self._seats = {policy: len(member.spaces.seats) for policy, member in members.items()}
        self._widths = dict(widths)
        self._start: dict[str, int] = {}
        self.per_row = 0
        for policy, seats in self._seats.items():
            self._start[policy] = self.per_row
            self.per_row += seats * widths[policy]

    def of(self, columns: Mapping[str, Tensor], policy: str) -> Tensor:
        """Return the numbers of a policy's agents, [B, K_p, width]."""
        start, seats, width = self._start[policy], self._seats[policy], self._widths[policy]
        noise: Tensor = columns["noise"][:, start : start + seats * width].unflatten(1, (seats, width))
        return noise


class AgentRows:
    """The columns of one policy's agents in a minibatch of JointTransitions, [B, K_p, ...] each."""

    def __init__(self, columns: Mapping[str, Tensor], policy: str) -> None:
        self._columns, self._policy = columns, policy

    def obs(self, prefix: Prefix = "") -> Tensor:
        """Return observations, [B * K_p, ...]."""
        return self._columns[f"{self._policy}:{prefix}obs"].flatten(0, 1)

    def mask(self, prefix: Prefix = "") -> Tensor | None:
        """Return legal actions, [B * K_p, A]; None without masks."""
        mask = self._columns.get(f"{self._policy}:{'next_mask' if prefix else 'action_mask'}")
        return None if mask is None else mask.flatten(0, 1)

    def present(self, prefix: Prefix = "") -> Tensor:
        """Return which agents decide, bool [B, K_p]."""
        return self._columns[f"{self._policy}:{prefix}present"]

    @property
    def reward(self) -> Tensor:
        """The agents' own rewards, [B * K_p]."""
        return self._columns[f"{self._policy}:reward"].flatten()

    @property
    def has_target(self) -> Tensor:
        """Whether each agent's return is known, or has a value to bootstrap from, bool [B, K_p].

        False also for an agent that was truncated while others went on: its final observation is not stored.
        """
        return self.present() & (self._columns[f"{self._policy}:terminated"] | self.present("next_"))

    def discount(self, discount: float) -> Tensor:
        """Return `discount`, or 0 where the agent terminated, [B * K_p]."""
        continues = self.present("next_") & ~self._columns[f"{self._policy}:terminated"]
        return torch.where(continues, discount, 0.0).flatten()


class TermNames:
    """Names the terms of a policy's losses: `critics`, or `critics/<policy>` in a learner of several policies."""

    def __init__(self, policy: str, members: Mapping[str, Member]) -> None:
        self._suffix = "" if len(members) == 1 else f"/{policy}"

    def __call__(self, terms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {self.of(name): term for name, term in terms.items()}

    def of(self, name: str) -> str:
        """Return the name of one term, or of a loss group."""
        return f"{name}{self._suffix}"


class JointLoss:
    """Base of a policy's losses by critics of all agents, with their noise and the names of their terms."""

    def __init__(self, policy: str, noise: SeatNoise, names: TermNames) -> None:
        self.policy, self.noise, self.names, self.noise_per_row = policy, noise, names, noise.per_row


class CentralCriticsLoss(JointLoss):
    """Base of the losses of critics of all agents."""

    def of_critics(self, q_tm1: Tensor, target: Tensor, q: Tensor, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """Return the loss of critics' values [C, B * K] of actions taken; `q` [B * K] are reported by their mean."""
        trained = AgentRows(minibatch, self.policy).has_target
        loss = row_means(critics_loss(q_tm1, target).view_as(trained), trained)
        total = (loss * minibatch["weight"]).mean()
        q_mean = mean_over_present(q.view_as(trained), trained)
        return LossTerms(total, self.names({"critics": total.detach(), "q_mean": q_mean}))


def critics_of(policy: str) -> Callable[[Any], Iterable[nn.Parameter]]:
    """Return a function from a network to the parameters of a policy's critics, for a LossGroup."""
    return lambda module: module.critics[policy].parameters()


def actor_of(policy: str) -> Callable[[Any], Iterable[nn.Parameter]]:
    """Return a function from a network to the parameters of a policy's actor, for a LossGroup."""
    return lambda module: module.actors[policy].parameters()


@dataclass(frozen=True)
class CentralCritics(TorchAlgorithm):
    """The settings of critics that see all agents of the learner, and of actors' losses by them."""

    #: what critics see beside actions: state (the environment's), observations (all agents')
    critic_sees: Sequence[JointCriticSees] = ("observations",)
    others: Others = "replay"  #: actions of the other agents in an actor's loss: of the replay, or of the policies now


@dataclass(frozen=True)
class JointActorCritic(JointReplayPlan, CentralCritics, JointOffPolicyActorCritic):
    """A JointOffPolicyActorCritic with central critics and a plan: add `policy_actor`.

    Windows are one step long: with more, agents that end apart would need windows of their own.
    """

    batch_agent_steps: Steps = 512  #: agent steps drawn for an update: with 2 agents, 256 env steps
    train_every_agent_steps: Steps = 32
    #: agent steps stored before the first update; until then actions are random
    learning_starts_agent_steps: StepsOrZero = 4_000
    replay_agent_steps: Steps = 200_000

    def policy_actor(self, spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> NetworkActor:
        """Make the actor of one policy, without warm-up."""
        raise NotImplementedError(f"{type(self).__name__} has no policy_actor(spaces, model, generator)")

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> WarmupActor:
        # Without the critics, whose inputs are known only with all members.
        return WarmupActor(self.policy_actor(spaces, model, torch.Generator().manual_seed(seed)), spaces.action)

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        if isinstance(model, NestedTorsoConfig):
            reason = "its critics see all agents' observations and actions as one vector"
            message = f"cannot learn with {type(model).__name__}"
            problems.append(Problem(message, self.name, reason, "use a model of vectors, such as mlp"))
        return problems
