"""Network and losses of TD3 and DDPG: a deterministic policy and its critics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.learner.loss import LossTerms
from marlflow.losses.deterministic_policy_gradient import (
    clipped_double_q_target,
    critics_loss,
    deterministic_policy_loss,
    smoothed_action,
)
from marlflow.policy.box import DeterministicActor
from marlflow.policy.critics import BoxCritics
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


class DeterministicCriticsLoss:
    """Squared errors to the lowest target critic at the target policy's action, optionally smoothed."""

    def __init__(self, action_size: int, smoothing: Smoothing | None) -> None:
        self.smoothing, self.noise_per_row = smoothing, 0 if smoothing is None else action_size

    def set_schedule(self, values: Mapping[str, float]) -> None:
        if self.smoothing is not None:
            noise, clip = self.smoothing
            self.smoothing = Smoothing(values.get("target_noise", noise), values.get("target_noise_clip", clip))

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


class DeterministicActorLoss:
    """Negative value of the policy's actions by the first critic."""

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # Nothing of this loss is scheduled.
        return

    def __call__(
        self, module: DeterministicNetwork, target_module: DeterministicNetwork, minibatch: Mapping[str, Tensor]
    ) -> LossTerms:
        obs = minibatch["obs"]
        total = deterministic_policy_loss(module.critics.first(obs, module.actor(obs))).mean()
        return LossTerms(total, {"actor": total.detach()})
