"""Network and losses of MASAC: soft actor-critics whose critics see all agents' actions.

Soft Actor-Critic (Haarnoja et al., 2018, arXiv:1812.05805; Discrete actions: arXiv:1910.07207) with the critics of
MADDPG (Lowe et al., 2017, arXiv:1706.02275). Each policy has its own temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.algorithms.algorithm import Member
from marlflow.algorithms.joint_actor_critic import (
    AgentRows,
    CentralCriticsLoss,
    JointLoss,
    Others,
    SeatNoise,
    TermNames,
    joint_view,
)
from marlflow.algorithms.sac_loss import SHORT_OF_TARGET, TargetEntropy, Temperature, TemperatureLoss
from marlflow.base.spaces import Spaces
from marlflow.learner.loss import LossTerms, Unscheduled
from marlflow.losses.deterministic_policy_gradient import gumbel_noise, one_hot_best
from marlflow.losses.mixing import mean_over_present, row_means
from marlflow.losses.q_learning import taken_value
from marlflow.losses.sac import (
    expected_soft_policy_loss,
    expected_soft_q_target,
    legal_probabilities,
    soft_policy_loss,
    soft_q_target,
)
from marlflow.policy.box import SquashedGaussianActor
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.joint_critics import JointCritics, JointCriticSees, only_present, replaced_own
from marlflow.policy.normalized import normalize_by
from marlflow.policy.policy_modules import PolicyModules, Prefix
from marlflow.policy.torso import TorsoConfig, build_torso


class LogTemperature(nn.Module):
    """The logarithm of one policy's temperature."""

    log_temperature: nn.Parameter

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(initial)))


class JointSoftNetwork(nn.Module):
    """For each policy an actor, two critics, and the logarithm of a temperature.

    Critics of a Box value one action; those of Discrete actions value each, given the other agents' actions.
    """

    def __init__(
        self, members: Mapping[str, Member], sees: Sequence[JointCriticSees], temperature: float, seed: int
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        discrete = {policy for policy, one in members.items() if isinstance(one.spaces.action, gym.Discrete)}
        self.view = joint_view(members, sees, values_all=discrete)
        self.actors, self.critics, self.temperatures = PolicyModules(), PolicyModules(), PolicyModules()
        for policy, member in members.items():
            values = member.spaces.num_actions if policy in discrete else 1
            self.actors[policy] = soft_actor(member.spaces, member.model, generator)
            normalize_by(self.actors[policy], f"{policy}:obs", f"{policy}:present")
            self.critics[policy] = JointCritics(self.view.width(policy), values, member.model, 2, generator)
            self.temperatures[policy] = LogTemperature(temperature)

    def tempered(self, policy: str) -> LogTemperature:
        """Return the module with a policy's temperature."""
        return cast(LogTemperature, self.temperatures[policy])


def soft_actor(
    spaces: Spaces, model: TorsoConfig, generator: torch.Generator
) -> SquashedGaussianActor | CategoricalActor:
    """Build a squashed Gaussian actor of a Box, or a softmax actor of Discrete actions."""
    torso, features = build_torso(spaces, model, generator)
    if isinstance(spaces.action, gym.Box):
        return SquashedGaussianActor(torso, features, spaces.action, generator)
    return CategoricalActor(torso, features, spaces.num_actions, generator)


class SampledActions:
    """Samples each policy's actions once, with the noise of a minibatch."""

    def __init__(
        self, module: JointSoftNetwork, noise: SeatNoise, columns: Mapping[str, Tensor], prefix: Prefix = ""
    ) -> None:
        self._module, self._noise, self._columns, self._prefix = module, noise, columns, prefix
        self.logp: dict[str, Tensor] = {}
        """Log-densities [B * K] in [-1, 1], by policy, of the Box actions sampled so far."""

    def of(self, policy: str) -> Tensor:
        """Return actions of `policy` as critics see them, [B, K, A]; zero where absent."""
        prefix: Prefix = self._prefix
        agents, actor = AgentRows(self._columns, policy), self._module.actors[policy]
        present, noise = agents.present(prefix), self._noise.of(self._columns, policy).flatten(0, 1)
        if isinstance(actor, SquashedGaussianActor):
            now, following = noise.chunk(2, -1)
            action, self.logp[policy] = actor.sample(agents.obs(prefix), following if prefix else now)
        else:
            action = one_hot_best(actor(agents.obs(prefix)).float() + gumbel_noise(noise), agents.mask(prefix))
        return only_present(action.unflatten(0, present.shape), present)


def soft_noise(members: Mapping[str, Member]) -> SeatNoise:
    """Return the noise of an agent: for two samples in a Box; for one of Discrete actions, if other agents see it."""
    agents = sum(len(member.spaces.seats) for member in members.values())
    widths = {
        policy: 2 * int(torch.Size(member.spaces.action_shape).numel())
        if isinstance(member.spaces.action, gym.Box)
        else member.spaces.num_actions * (agents > 1)
        for policy, member in members.items()
    }
    return SeatNoise(members, widths)


class JointSoftCriticsLoss(CentralCriticsLoss):
    """Squared errors of a policy's critics to the soft values of next actions, which all are of the policies now."""

    def __init__(
        self, policy: str, discount: float, temperature: Temperature, noise: SeatNoise, names: TermNames
    ) -> None:
        super().__init__(policy, noise, names)
        self.discount, self.temperature = discount, temperature

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.temperature.set_schedule(values)

    def __call__(
        self, module: JointSoftNetwork, target_module: JointSoftNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        policy, view, agents = self.policy, module.view, AgentRows(minibatch, self.policy)
        with torch.no_grad():
            target = self._target(module, target_module, minibatch)
        seen = view.actions(policy, lambda other: view.taken(minibatch, other))
        q_tm1 = module.critics[policy](view.rows(policy, minibatch, seen))
        # Index 0 of a Box's one value.
        is_box = isinstance(module.actors[policy], SquashedGaussianActor)
        chosen = (
            torch.zeros_like(agents.reward, dtype=torch.int64) if is_box else minibatch[f"{policy}:action"].flatten()
        )
        q_taken = taken_value(q_tm1, chosen.expand(len(q_tm1), -1))
        return self.of_critics(q_taken, target, q_taken.detach().mean(0), minibatch)

    def _target(
        self, module: JointSoftNetwork, target_module: JointSoftNetwork, minibatch: Mapping[str, Tensor]
    ) -> Tensor:
        policy, agents = self.policy, AgentRows(minibatch, self.policy)
        sampled = SampledActions(module, self.noise, minibatch, "next_")
        rows = module.view.rows(policy, minibatch, module.view.actions(policy, sampled.of), "next_")
        q_t = target_module.critics[policy](rows)
        temperature = self.temperature.of(module.tempered(policy))
        reward, discount = agents.reward, agents.discount(self.discount)
        if (logp_t := sampled.logp.get(policy)) is not None:
            return soft_q_target(reward, discount, q_t.squeeze(-1), logp_t, temperature)
        p_t, all_logp_t = legal_probabilities(module.actors[policy](agents.obs("next_")).float(), agents.mask("next_"))
        return expected_soft_q_target(reward, discount, q_t, p_t, all_logp_t, temperature)


def temperature_of(policy: str) -> Callable[[Any], Iterable[nn.Parameter]]:
    """Return a function from a network to the log temperature of a policy, for a LossGroup."""
    return lambda module: module.temperatures[policy].parameters()


class JointSoftActorLoss(JointLoss, Unscheduled):
    """Negative soft value of a policy's actions by critics that also see the others' actions.

    In a Box it is that of a sampled action, else an expectation over the legal actions.
    """

    def __init__(
        self,
        policy: str,
        others: Others,
        temperature: Temperature,
        target_entropy: TargetEntropy,
        noise: SeatNoise,
        names: TermNames,
    ) -> None:
        super().__init__(policy, noise, names)
        # Its schedule is set by the critics' loss, with which it is shared.
        self.temperature, self.others, self.target_entropy = temperature, others, target_entropy

    def __call__(
        self, module: JointSoftNetwork, target_module: JointSoftNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        present = AgentRows(minibatch, self.policy).present()
        is_box = isinstance(module.actors[self.policy], SquashedGaussianActor)
        loss, entropy, target = (self._sampled if is_box else self._expected)(module, minibatch)
        total = mean_over_present(loss.view_as(present), present)
        # How far the present agents' mean entropy is below its target, [B].
        columns = {f"{self.policy}:{SHORT_OF_TARGET}": row_means((target - entropy).view_as(present), present)}
        mean_entropy = mean_over_present(entropy.view_as(present), present)
        return LossTerms(total, self.names({"actor": total.detach(), "entropy": mean_entropy}), columns=columns)

    def _sampled(self, module: JointSoftNetwork, minibatch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        # Returns loss, entropy and target entropy of each agent, [B * K].
        policy, view = self.policy, module.view
        sampled = SampledActions(module, self.noise, minibatch)
        own, others = sampled.of(policy), self._others(module, minibatch)
        actions = {**others, policy: replaced_own(others[policy], own)}
        q = module.critics[policy](view.rows(policy, minibatch, actions)).squeeze(-1)
        logp = sampled.logp[policy]
        loss = soft_policy_loss(q, logp, self.temperature.of(module.tempered(policy)))
        return loss, -logp.detach(), self.target_entropy.of_box(view.action_size(policy), logp.detach())

    def _expected(self, module: JointSoftNetwork, minibatch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        policy, agents = self.policy, AgentRows(minibatch, self.policy)
        p, logp = legal_probabilities(module.actors[policy](agents.obs()).float(), agents.mask())
        with torch.no_grad():
            q = module.critics[policy](module.view.rows(policy, minibatch, self._others(module, minibatch)))
        loss = expected_soft_policy_loss(q, p, logp, self.temperature.of(module.tempered(policy)))
        entropy = -(p * logp).sum(-1).detach()
        return loss, entropy, self.target_entropy.of_discrete(p.detach(), agents.mask())

    def _others(self, module: JointSoftNetwork, minibatch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        sampled = SampledActions(module, self.noise, minibatch)
        with torch.no_grad():
            if self.others == "policies":
                return module.view.actions(self.policy, sampled.of)
            return module.view.actions(self.policy, lambda other: module.view.taken(minibatch, other))


class JointTemperatureLoss(Unscheduled):
    """Raises a policy's temperature while its agents' entropy is below its target."""

    def __init__(self, actor_loss: JointSoftActorLoss) -> None:
        self._policy, self._names = actor_loss.policy, actor_loss.names
        self._loss = TemperatureLoss(f"{actor_loss.policy}:{SHORT_OF_TARGET}")

    def __call__(self, module: JointSoftNetwork, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        tempered = module.tempered(self._policy)
        total = self._loss(tempered, None, minibatch).total
        return LossTerms(total, self._names({"temperature": tempered.log_temperature.detach().exp()}))
