"""Networks and losses of deterministic policies: of DDPG and TD3, and of MADDPG and MATD3 with joint critics.

Joint critics see all agents' actions (Lowe et al., 2017, arXiv:1706.02275); two of them and target policy smoothing:
Ackermann et al., 2019, arXiv:1910.01465. Discrete actions have the gradient of a Gumbel-softmax (arXiv:1611.01144).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.algorithms.algorithm import Member
from marlflow.algorithms.joint_actor_critic import (
    AgentRows,
    CentralCriticsLoss,
    JointActorCritic,
    JointLoss,
    SeatNoise,
    TermNames,
    actor_of,
    critics_of,
    joint_view,
)
from marlflow.base.errors import ConfigInvalid
from marlflow.base.ranges import Noise, PositiveWeight, Weight
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.learner.loss import LossTerms, Unscheduled
from marlflow.learner.loss_groups import LossGroup
from marlflow.losses.deterministic_policy_gradient import (
    clipped_double_q_target,
    critics_loss,
    deterministic_policy_loss,
    gumbel_noise,
    one_hot_best,
    smoothed_action,
    straight_through_sample,
)
from marlflow.losses.mixing import mean_over_present, row_means
from marlflow.policy.actor import NetworkActor
from marlflow.policy.box import DeterministicActor
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.critics import BoxCritics
from marlflow.policy.joint_critics import JointCritics, JointCriticSees, only_present, replaced_own
from marlflow.policy.normalized import normalize_by
from marlflow.policy.policy_modules import PolicyModules, Prefix
from marlflow.policy.torso import TorsoConfig, build_torso


class DeterministicNetwork(nn.Module):
    """An actor and its critics; raises ConfigInvalid unless actions are a Box."""

    def __init__(self, spaces: Spaces, model: TorsoConfig, critics: int, exploration_noise: float, seed: int) -> None:
        super().__init__()
        if not isinstance(spaces.action, gym.Box):
            raise ConfigInvalid([f"a deterministic policy acts in a Box, not in {spaces.action}"])
        generator = torch.Generator().manual_seed(seed)
        torso, features = build_torso(spaces, model, generator)
        self.actor = DeterministicActor(torso, features, spaces.action, generator, exploration_noise)
        self.critics = BoxCritics(spaces, model, critics, generator)


class Smoothing(NamedTuple):
    """Target policy smoothing: standard deviation and clip range of noise on actions in [-1, 1]."""

    noise: float
    clip: float


class Smoothed:
    """A loss with target policy smoothing, or None."""

    smoothing: Smoothing | None

    def set_schedule(self, values: Mapping[str, float]) -> None:
        if self.smoothing is not None:
            noise, clip = self.smoothing
            self.smoothing = Smoothing(values.get("target_noise", noise), values.get("target_noise_clip", clip))


class DeterministicCriticsLoss(Smoothed):
    """Squared errors to the lowest target critic at the target policy's action, optionally smoothed."""

    def __init__(self, action_size: int, smoothing: Smoothing | None) -> None:
        self.smoothing, self.noise_per_row = smoothing, 0 if smoothing is None else action_size

    def __call__(
        self, module: DeterministicNetwork, target_module: DeterministicNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        with torch.no_grad():
            action = target_module.actor(minibatch["next_obs"])
            if self.smoothing is not None:
                action = smoothed_action(action, minibatch["noise"], *self.smoothing)
            q_t = target_module.critics(minibatch["next_obs"], action)
            target = clipped_double_q_target(minibatch["reward"], minibatch["discount"], q_t)
        # Stored actions are in the environment's bounds; critics take [-1, 1].
        q_tm1 = module.critics(minibatch["obs"], module.actor.box.within(minibatch["action"]))
        total = (critics_loss(q_tm1, target) * minibatch["weight"]).mean()
        return LossTerms(total, {"critics": total.detach(), "q_mean": q_tm1.detach().mean()})


class DeterministicActorLoss(Unscheduled):
    """Negative value of the policy's actions by the first critic."""

    def __call__(
        self, module: DeterministicNetwork, target_module: DeterministicNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        obs = minibatch["obs"]
        total = deterministic_policy_loss(module.critics.first(obs, module.actor(obs))).mean()
        return LossTerms(total, {"actor": total.detach()})


class JointDeterministicNetwork(nn.Module):
    """An actor and `critics` critics for each policy; critics see all policies' actions."""

    def __init__(
        self,
        members: Mapping[str, Member],
        sees: Sequence[JointCriticSees],
        critics: int,
        exploration_noise: float,
        seed: int,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.view = joint_view(members, sees)
        self.actors, self.critics = PolicyModules(), PolicyModules()
        for policy, member in members.items():
            self.actors[policy] = deterministic_actor(member.spaces, member.model, exploration_noise, generator)
            normalize_by(self.actors[policy], f"{policy}:obs", f"{policy}:present")
            self.critics[policy] = JointCritics(self.view.width(policy), 1, member.model, critics, generator)

    def critics_of(self, policy: str) -> JointCritics:
        """Return a policy's critics."""
        return cast(JointCritics, self.critics[policy])

    def best(self, policy: str, columns: Mapping[str, Tensor], prefix: Prefix = "") -> Tensor:
        """Return a policy's actions without noise, as critics see them, [B, K, A]; zero where absent."""
        agents, actor = AgentRows(columns, policy), self.actors[policy]
        action: Tensor = actor(agents.obs(prefix)).float()
        if isinstance(actor, CategoricalActor):
            action = one_hot_best(action, agents.mask(prefix))
        present = agents.present(prefix)
        return only_present(action.unflatten(0, present.shape), present)


def deterministic_actor(
    spaces: Spaces, model: TorsoConfig, exploration_noise: float, generator: torch.Generator
) -> DeterministicActor | CategoricalActor:
    """Build an actor of a Box, with Gaussian exploration noise, or of Discrete actions, which explores by sampling."""
    torso, features = build_torso(spaces, model, generator)
    if isinstance(spaces.action, gym.Box):
        return DeterministicActor(torso, features, spaces.action, generator, exploration_noise)
    return CategoricalActor(torso, features, spaces.num_actions, generator)


class JointCriticsLoss(Smoothed, CentralCriticsLoss):
    """Squared errors of a policy's critics to the lowest target critic at the target policies' actions.

    Rewards and ends are each agent's own, so policies of one learner may be opponents.
    """

    def __init__(self, policy: str, discount: float, smoothing: Smoothing | None, noise: SeatNoise, names: TermNames):
        super().__init__(policy, noise, names)
        self.discount, self.smoothing = discount, smoothing

    def __call__(
        self,
        module: JointDeterministicNetwork,
        target_module: JointDeterministicNetwork,
        minibatch: Mapping[str, Tensor],
    ) -> LossTerms:
        policy, view, agents = self.policy, module.view, AgentRows(minibatch, self.policy)
        with torch.no_grad():
            actions = view.actions(policy, lambda other: self._next_action(target_module, other, minibatch))
            q_t = target_module.critics[policy](view.rows(policy, minibatch, actions, "next_")).squeeze(-1)
            target = clipped_double_q_target(agents.reward, agents.discount(self.discount), q_t)
        taken = view.actions(policy, lambda other: view.taken(minibatch, other))
        q_tm1 = module.critics[policy](view.rows(policy, minibatch, taken)).squeeze(-1)
        return self.of_critics(q_tm1, target, q_tm1.detach().mean(0), minibatch)

    def _next_action(
        self, target_module: JointDeterministicNetwork, policy: str, minibatch: Mapping[str, Tensor]
    ) -> Tensor:
        action = target_module.best(policy, minibatch, "next_")
        # One-hot actions are not smoothed.
        if self.smoothing is None or isinstance(target_module.actors[policy], CategoricalActor):
            return action
        smoothed = smoothed_action(action, self.noise.of(minibatch, policy), *self.smoothing)
        return only_present(smoothed, AgentRows(minibatch, policy).present("next_"))


class JointActorLoss(JointLoss, Unscheduled):
    """Negative value of a policy's actions by its first critic, which also sees the others' actions."""

    def __init__(
        self, policy: str, settings: JointDeterministicActorCritic, noise: SeatNoise, names: TermNames
    ) -> None:
        super().__init__(policy, noise, names)
        self.settings = settings

    def __call__(
        self,
        module: JointDeterministicNetwork,
        target_module: JointDeterministicNetwork,
        minibatch: Mapping[str, Tensor],
    ) -> LossTerms:
        policy, view, agents = self.policy, module.view, AgentRows(minibatch, self.policy)
        present = agents.present()
        with torch.no_grad():
            replayed = self.settings.others == "replay"
            others = view.actions(
                policy, lambda other: view.taken(minibatch, other) if replayed else module.best(other, minibatch)
            )
        action, penalty = self._own_action(module, minibatch)
        own = only_present(action.unflatten(0, present.shape), present)
        rows = view.rows(policy, minibatch, {**others, policy: replaced_own(others[policy], own)})
        q = module.critics_of(policy).first(rows).squeeze(-1)
        total = mean_over_present(deterministic_policy_loss(q).view_as(present), present)
        if penalty is not None:
            total = total + self.settings.logit_penalty * mean_over_present(penalty.view_as(present), present)
        return LossTerms(total, self.names({"actor": total.detach()}))

    def _own_action(
        self, module: JointDeterministicNetwork, minibatch: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        # Returns actions [B * K, A] with gradient and, for Discrete ones, the mean squared logit of each agent's legal
        # actions [B * K].
        agents, actor = AgentRows(minibatch, self.policy), module.actors[self.policy]
        outputs: Tensor = actor(agents.obs()).float()
        if not isinstance(actor, CategoricalActor):
            return outputs, None
        mask, gumbel = agents.mask(), gumbel_noise(self.noise.of(minibatch, self.policy).flatten(0, 1))
        squares = outputs.square()
        action = straight_through_sample(outputs, mask, gumbel, self.settings.gumbel_temperature)
        return action, squares.mean(-1) if mask is None else row_means(squares, mask)


def deterministic_noise(members: Mapping[str, Member], smoothing: bool) -> SeatNoise:
    """Return the noise of an agent: for target policy smoothing in a Box, for a Gumbel-softmax of Discrete actions."""
    widths = {
        policy: int(torch.Size(member.spaces.action_shape).numel()) * smoothing
        if isinstance(member.spaces.action, gym.Box)
        else member.spaces.num_actions
        for policy, member in members.items()
    }
    return SeatNoise(members, widths)


class JointDeterministicActorCritic(JointActorCritic):
    """The network and losses of MADDPG, whose policies have one critic each, and MATD3."""

    critics: ClassVar[int] = 1

    #: standard deviation of exploration noise in a Box, for actions scaled to -1 to 1
    exploration_noise: OrSchedule[Noise]
    gumbel_temperature: PositiveWeight  #: temperature of the Gumbel-softmax that gives Discrete actions a gradient
    logit_penalty: Weight  #: weight of the mean squared logit of Discrete actions; more keeps them more random

    def network(self, members: Mapping[str, Member], seed: int) -> JointDeterministicNetwork:
        noise = initial_value(self.exploration_noise)
        return JointDeterministicNetwork(members, self.critic_sees, self.critics, noise, seed)

    def policy_actor(self, spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> NetworkActor:
        return deterministic_actor(spaces, model, initial_value(self.exploration_noise), generator)

    def groups(
        self,
        members: Mapping[str, Member],
        smoothing: Smoothing | None,
        actor_learning_rate: float | None = None,
        actor_every: int = 1,
    ) -> list[LossGroup]:
        """Return the loss groups of each policy: its critics, then its actor."""
        noise, groups = deterministic_noise(members, smoothing is not None), list[LossGroup]()
        for policy in members:
            names = TermNames(policy, members)
            critics = JointCriticsLoss(policy, self.discount, smoothing, noise, names)
            actor = JointActorLoss(policy, self, noise, names)
            groups.append(LossGroup(names.of("critics"), critics_of(policy), critics))
            groups.append(LossGroup(names.of("actor"), actor_of(policy), actor, actor_learning_rate, actor_every))
        return groups
