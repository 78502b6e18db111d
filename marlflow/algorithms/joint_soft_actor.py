"""Losses of MASAC's actors and temperatures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from marlflow.algorithms.joint_critics import AgentRows, Others, SeatNoise, TermNames
from marlflow.algorithms.joint_soft import JointSoftNetwork, SampledActions
from marlflow.algorithms.sac_temperature import SHORT_OF_TARGET, Temperature, TemperatureLoss
from marlflow.learner.loss import LossTerms
from marlflow.losses.mixing import mean_over_present, row_means
from marlflow.losses.sac import expected_soft_policy_loss, legal_probabilities, soft_policy_loss
from marlflow.policy.box import SquashedGaussianActor
from marlflow.policy.joint_critics import replaced_own


@dataclass(frozen=True)
class TargetEntropy:
    """The target of an agent's entropy: `nats`, or if None, `share` of the maximum of Discrete actions.

    In a Box, None means minus the number of components.
    """

    nats: float | None
    share: float

    def of_box(self, size: int, logp: Tensor) -> Tensor:
        """Return the target of each row of `logp` [N], for a Box of `size` components."""
        return torch.full_like(logp, -size if self.nats is None else self.nats)

    def of_discrete(self, p: Tensor, mask: Tensor | None) -> Tensor:
        """Return the target of each row of probabilities `p` [N, A], with legal actions `mask`."""
        if self.nats is not None:
            return torch.full_like(p[:, 0], self.nats)
        if mask is None:
            return torch.full_like(p[:, 0], self.share * math.log(p.shape[-1]))
        # The maximum entropy is the log of the number of legal actions.
        return self.share * mask.sum(-1).clamp(min=1).log()


class JointSoftActorLoss:
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
        self.policy, self.others, self.temperature = policy, others, temperature
        self.target_entropy = target_entropy
        self.noise, self.names, self.noise_per_row = noise, names, noise.per_row

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # The temperature is shared with the critics' loss, which has already updated it.
        return

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


class JointTemperatureLoss:
    """Raises a policy's temperature while its agents' entropy is below its target."""

    def __init__(self, actor_loss: JointSoftActorLoss) -> None:
        self._policy, self._names = actor_loss.policy, actor_loss.names
        self._loss = TemperatureLoss(f"{actor_loss.policy}:{SHORT_OF_TARGET}")

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # Nothing of this loss is scheduled.
        return

    def __call__(self, module: JointSoftNetwork, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        tempered = module.tempered(self._policy)
        total = self._loss(tempered, None, minibatch).total
        return LossTerms(total, self._names({"temperature": tempered.log_temperature.detach().exp()}))
