"""SAC for Discrete actions: network, and losses in expectation over actions (arXiv:1910.07207)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from marlflow.algorithms.sac_temperature import SHORT_OF_TARGET, Temperature
from marlflow.base.spaces import Spaces
from marlflow.learner.loss import ActorConstraint, LossTerms
from marlflow.losses.deterministic_policy_gradient import critics_loss
from marlflow.losses.sac import expected_soft_policy_loss, expected_soft_q_target, legal_probabilities
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.critics import ActionCritics
from marlflow.policy.torso import TorsoConfig, build_torso


class DiscreteNetwork(nn.Module):
    """A softmax actor, two critics, and the log of the temperature."""

    def __init__(self, spaces: Spaces, model: TorsoConfig, temperature: float, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        torso, features = build_torso(spaces, model, generator)
        self.actor = CategoricalActor(torso, features, spaces.num_actions, generator)
        self.critics = ActionCritics(spaces, model, 2, generator)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def probabilities(self, obs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return action probabilities and their logs, [N, A] each."""
        return legal_probabilities(self.actor(obs).float(), mask)


class DiscreteCriticsLoss:
    """Squared errors to the soft value of the next observation, over its legal actions."""

    def __init__(self, temperature: Temperature) -> None:
        self.temperature = temperature

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.temperature.set_schedule(values)

    def __call__(
        self, module: DiscreteNetwork, target_module: DiscreteNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        with torch.no_grad():
            next_obs, temperature = minibatch["next_obs"], self.temperature.of(module)
            p, logp = module.probabilities(next_obs, minibatch.get("next_mask"))
            q_t, reward, discount = target_module.critics(next_obs), minibatch["reward"], minibatch["discount"]
            target = expected_soft_q_target(reward, discount, q_t, p, logp, temperature)
        q_tm1 = module.critics(minibatch["obs"])
        taken = minibatch["action"].expand(len(q_tm1), -1).unsqueeze(-1)
        total = (critics_loss(q_tm1.gather(-1, taken).squeeze(-1), target) * minibatch["weight"]).mean()
        return LossTerms(total, {"critics": total.detach(), "q_mean": q_tm1.detach().mean()})


class DiscreteActorLoss:
    """Negative soft value of the policy, over the legal actions.

    The target entropy is `target_entropy` nats; if None, `target_share` of each row's maximum entropy. A part may
    set `constraint`.
    """

    def __init__(self, temperature: Temperature, target_entropy: float | None, target_share: float) -> None:
        self.temperature = temperature
        self.target_entropy = target_entropy
        self.target_share = target_share
        self.constraint: ActorConstraint | None = None

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # The temperature is shared with the critics' loss, which has already updated it.
        if self.constraint is not None:
            self.constraint.set_schedule(values)

    def __call__(
        self, module: DiscreteNetwork, target_module: DiscreteNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        mask = minibatch.get("action_mask")
        p, logp = module.probabilities(minibatch["obs"], mask)
        with torch.no_grad():
            q = module.critics(minibatch["obs"])
        by_row = expected_soft_policy_loss(q, p, logp, self.temperature.of(module))
        if self.constraint is not None:
            by_row = self.constraint(by_row, module, minibatch["obs"], p)
        total = by_row.mean()
        entropy = -(p * logp).sum(-1).detach()
        columns = {SHORT_OF_TARGET: self._target(p, mask) - entropy}
        return LossTerms(total, {"actor": total.detach(), "entropy": entropy.mean()}, columns=columns)

    def _target(self, p: Tensor, mask: Tensor | None) -> Tensor | float:
        if self.target_entropy is not None:
            return self.target_entropy
        if mask is None:
            return self.target_share * math.log(p.shape[-1])
        # The maximum entropy is the log of the number of legal actions.
        return self.target_share * mask.sum(-1).clamp(min=1).log()
