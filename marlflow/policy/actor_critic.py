"""An actor and a critic of one policy, with torsos of their own or a shared one."""

from __future__ import annotations

from typing import TypeAlias

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.gaussian import GaussianActor
from marlflow.policy.torso import TorsoConfig, linear

StochasticActor: TypeAlias = CategoricalActor | GaussianActor


class ActorCritic(nn.Module):
    """`actor` is what is published; `critic` estimates the return of an observation.

    With `critic_torso` None the critic reads the features of the actor's torso, and trains it too.
    """

    def __init__(self, spaces: Spaces, torso: TorsoConfig, critic_torso: TorsoConfig | None, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.actor = stochastic_actor(spaces, torso, generator)
        self.critic_torso: nn.Module | None = None
        features = self.actor.head.in_features
        if critic_torso is not None:
            self.critic_torso, features = critic_torso.build(spaces.obs_shape, generator)
        self.critic_head = linear(features, 1, 1.0, generator)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The actor's outputs [N, ...] and the values [N] of `obs` [N, ...]."""
        features = self.actor.torso(obs)
        outputs = self.actor.from_features(features)
        return outputs, self._value(features if self.critic_torso is None else self.critic_torso(obs))

    def critic(self, obs: Tensor) -> Tensor:
        """The values [N] of `obs` [N, ...]."""
        torso = self.actor.torso if self.critic_torso is None else self.critic_torso
        return self._value(torso(obs))

    def _value(self, features: Tensor) -> Tensor:
        value: Tensor = self.critic_head(features)
        return value.squeeze(-1)


def stochastic_actor(spaces: Spaces, torso: TorsoConfig, generator: torch.Generator) -> StochasticActor:
    """The actor that fits the action space; raises ConfigInvalid if there is none."""
    body, features = torso.build(spaces.obs_shape, generator)
    if isinstance(spaces.action, gym.Discrete):
        return CategoricalActor(body, features, spaces.num_actions, generator)
    if isinstance(spaces.action, gym.Box):
        return GaussianActor(body, features, spaces.action, generator)
    raise ConfigInvalid([f"a policy gradient needs Discrete or Box actions, not {spaces.action}"])
