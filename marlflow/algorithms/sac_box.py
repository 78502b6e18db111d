"""SAC for a Box: network, and losses with a sampled action (arXiv:1812.05805)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.algorithms.sac_temperature import SHORT_OF_TARGET, Temperature
from marlflow.base.spaces import Spaces
from marlflow.learner.loss import ActorConstraint, LossTerms
from marlflow.losses.deterministic_policy_gradient import critics_loss
from marlflow.losses.sac import soft_policy_loss, soft_q_target
from marlflow.policy.box import SquashedGaussianActor
from marlflow.policy.critics import BoxCritics
from marlflow.policy.torso import TorsoConfig, build_torso


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
