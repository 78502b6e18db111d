"""SAC's networks, losses and temperature (entropy coefficient), which is fixed or learned.

Losses are of a sampled action for a Box (arXiv:1812.05805), and in expectation for Discrete actions (arXiv:1910.07207).
Critics and actor use the temperature from before the update; its own loss uses the entropy from before the actor's
step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.base.spaces import Spaces
from marlflow.learner.loss import ActorConstraint, LossTerms, Unscheduled
from marlflow.losses.deterministic_policy_gradient import critics_loss
from marlflow.losses.q_learning import taken_value
from marlflow.losses.sac import (
    expected_soft_policy_loss,
    expected_soft_q_target,
    legal_probabilities,
    soft_policy_loss,
    soft_q_target,
    temperature_loss,
)
from marlflow.policy.box import SquashedGaussianActor
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.critics import ActionCritics, BoxCritics
from marlflow.policy.torso import TorsoConfig, build_torso


class Tempered(Protocol):
    """A module with a temperature."""

    log_temperature: nn.Parameter


class Temperature:
    """A `fixed` temperature, which may be scheduled, or None: the module's learned one."""

    def __init__(self, fixed: float | None) -> None:
        self.fixed = None if fixed is None else torch.tensor(fixed)

    def of(self, module: Tempered) -> Tensor:
        """Return the current temperature, a scalar without gradient."""
        return module.log_temperature.detach().exp() if self.fixed is None else self.fixed

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set `temperature`, if it is fixed."""
        if self.fixed is not None and "temperature" in values:
            self.fixed = torch.tensor(values["temperature"])


SHORT_OF_TARGET = "short_of_target"
"""The column in which an actor's loss gives how far each row's estimated entropy is below its target, [N]."""


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


class TemperatureLoss(Unscheduled):
    """Raises the temperature while the actor's entropy is below its target, as its loss gives it in a column."""

    def __init__(self, column: str = SHORT_OF_TARGET) -> None:
        self._column = column

    def __call__(self, module: Tempered, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        total = temperature_loss(module.log_temperature, minibatch[self._column]).mean()
        return LossTerms(total, {"temperature": module.log_temperature.detach().exp()})


class BoxNetwork(nn.Module):
    """A squashed Gaussian actor, two critics, and the log of the temperature."""

    def __init__(self, spaces: Spaces, box: gym.Box, model: TorsoConfig, temperature: float, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        torso, features = build_torso(spaces, model, generator)
        self.actor = SquashedGaussianActor(torso, features, box, generator)
        self.critics = BoxCritics(spaces, model, 2, generator)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))


class BoxCriticsLoss:
    """Squared errors to the soft value of a sampled next action, drawn with the second half of `noise`."""

    def __init__(self, temperature: Temperature, action_size: int) -> None:
        self.temperature, self.noise_per_row = temperature, 2 * action_size

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.temperature.set_schedule(values)

    def __call__(self, module: BoxNetwork, target_module: BoxNetwork, minibatch: Mapping[str, Tensor]) -> LossTerms:
        with torch.no_grad():
            next_obs, noise = minibatch["next_obs"], minibatch["noise"][:, self.noise_per_row // 2 :]
            action, logp = module.actor.sample(next_obs, noise)
            q_t, temperature = target_module.critics(next_obs, action), self.temperature.of(module)
            target = soft_q_target(minibatch["reward"], minibatch["discount"], q_t, logp, temperature)
        q_tm1 = module.critics(minibatch["obs"], module.actor.box.within(minibatch["action"]))
        total = (critics_loss(q_tm1, target) * minibatch["weight"]).mean()
        return LossTerms(total, {"critics": total.detach(), "q_mean": q_tm1.detach().mean()})


class BoxActorLoss:
    """Negative soft value of a sampled action, drawn with the first half of `noise`, [N, 2 D].

    A part may set `constraint`.
    """

    def __init__(self, temperature: Temperature, action_size: int, target_entropy: float) -> None:
        self.temperature, self.noise_per_row = temperature, 2 * action_size
        self.target_entropy = target_entropy
        self.constraint: ActorConstraint | None = None

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # The temperature is shared with the critics' loss, which has already updated it.
        if self.constraint is not None:
            self.constraint.set_schedule(values)

    def __call__(self, module: BoxNetwork, target_module: BoxNetwork, minibatch: Mapping[str, Tensor]) -> LossTerms:
        obs = minibatch["obs"]
        action, logp = module.actor.sample(obs, minibatch["noise"][:, : self.noise_per_row // 2])
        by_row = soft_policy_loss(module.critics(obs, action), logp, self.temperature.of(module))
        if self.constraint is not None:
            by_row = self.constraint(by_row, module, obs, action)
        total = by_row.mean()
        sampled = logp.detach()
        # -logp estimates the entropy.
        columns = {SHORT_OF_TARGET: sampled + self.target_entropy}
        return LossTerms(total, {"actor": total.detach(), "entropy": -sampled.mean()}, columns=columns)


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
        taken = taken_value(q_tm1, minibatch["action"].expand(len(q_tm1), -1))
        total = (critics_loss(taken, target) * minibatch["weight"]).mean()
        return LossTerms(total, {"critics": total.detach(), "q_mean": taken.detach().mean()})


class DiscreteActorLoss:
    """Negative soft value of the policy, over the legal actions.

    A part may set `constraint`.
    """

    def __init__(self, temperature: Temperature, target_entropy: TargetEntropy) -> None:
        self.temperature = temperature
        self.target_entropy = target_entropy
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
        columns = {SHORT_OF_TARGET: self.target_entropy.of_discrete(p.detach(), mask) - entropy}
        return LossTerms(total, {"actor": total.detach(), "entropy": entropy.mean()}, columns=columns)
