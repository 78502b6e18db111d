"""Actor and critic of one policy, with separate torsos or a shared one."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, cast

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.dense import Dense, Layers, as_rows, linear, through
from marlflow.policy.gaussian import GaussianActor
from marlflow.policy.normalized import ReturnScale, in_units_of
from marlflow.policy.torso import TorsoConfig, build_torso

StochasticActor: TypeAlias = CategoricalActor | GaussianActor


class ActorCritic(nn.Module):
    """Publishes `actor`; `critic` estimates returns.

    With `critic_torso` None the critic shares and trains the actor's torso. `normalize_values`: value normalization by
    Pop-Art (see ReturnScale).
    """

    def __init__(
        self,
        spaces: Spaces,
        torso: TorsoConfig,
        critic_torso: TorsoConfig | None,
        seed: int,
        normalize_values: bool = False,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.actor = stochastic_actor(spaces, torso, generator)
        self.critic_torso: nn.Module | None = None
        features = self.actor.head.in_features
        if critic_torso is not None:
            self.critic_torso, features = build_torso(spaces, critic_torso, generator)
        self.critic_head = linear(features, 1, 1.0, generator)
        self.returns = ReturnScale(self.critic_head) if normalize_values else None
        self.layers = _layers_of(self)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actor's outputs [N, ...] and the values [N] of `obs` [N, ...]."""
        if self.critic_torso is not None:
            return self.actor(obs), self.critic(obs)
        features = self.actor.torso(obs)
        return self.actor.head(features), in_units_of(self.returns, self.critic_head(features).squeeze(-1))

    def critic(self, obs: Tensor) -> Tensor:
        """Return the values [N] of `obs` [N, ...]."""
        torso = self.actor.torso if self.critic_torso is None else self.critic_torso
        return in_units_of(self.returns, through(torso, self.critic_head, obs).squeeze(-1))

    def value_error(self, squared: Tensor) -> Tensor:
        """Convert squared value errors to the squared units of the critic's head."""
        return squared if self.returns is None else squared / self.returns.variance


def stochastic_actor(spaces: Spaces, torso: TorsoConfig, generator: torch.Generator) -> StochasticActor:
    """Build the actor for the action space; raises ConfigInvalid if none fits."""
    return stochastic_head(spaces, *build_torso(spaces, torso, generator), generator)


def stochastic_head(spaces: Spaces, body: nn.Module, features: int, generator: torch.Generator) -> StochasticActor:
    """Build the actor for the action space on `body`, which outputs [N, features]."""
    if isinstance(spaces.action, gym.Discrete):
        return CategoricalActor(body, features, spaces.num_actions, generator)
    if isinstance(spaces.action, gym.Box):
        return GaussianActor(body, features, spaces.action, generator)
    raise ConfigInvalid([f"a policy gradient needs Discrete or Box actions, not {spaces.action}"])


class DensePass:
    """Forward pass of an ActorCritic without autograd, with a closed-form backward pass, if it `fits`."""

    __slots__ = ("_actor", "_critic", "_layers", "_shared", "logits", "value")

    @staticmethod
    def fits(module: ActorCritic) -> bool:
        """Return whether actions are Discrete, torsos fully connected, and gradients on a CPU."""
        return module.layers is not None and module.layers.actor.take_gradients

    def __init__(self, module: ActorCritic, obs: Tensor) -> None:
        layers = self._layers = cast(ActorCriticLayers, module.layers)
        x = as_rows(obs)
        self._shared = None if layers.shared is None else layers.shared.run(x)
        if self._shared is not None:
            x = self._shared[-1]
        self._actor, self._critic = layers.actor.run(x), layers.critic.run(x)
        self.logits, self.value = self._actor[-1], self._critic[-1].squeeze(-1)

    def pull(self, d_logits: Tensor, d_value: Tensor) -> None:
        """Write every parameter's gradient, given the gradients of `logits` [N, A] and `value` [N]."""
        layers = self._layers
        by_logits = layers.actor.pull(d_logits, self._actor)
        by_value = layers.critic.pull(d_value.unsqueeze(-1), self._critic)
        if layers.shared is not None and self._shared is not None:
            # Layers.pull stops before the first layer's weights; a shared torso needs the gradient on the other side.
            by_features = torch.mm(by_logits, layers.actor.parameters[0])
            layers.shared.pull(by_features.addmm_(by_value, layers.critic.parameters[0]), self._shared)


class ActorCriticLayers(NamedTuple):
    """An ActorCritic as plain layers: the shared torso, if any, then the actor's and the critic's own."""

    shared: Layers | None
    actor: Layers
    critic: Layers


def _layers_of(module: ActorCritic) -> ActorCriticLayers | None:
    # Exact types: a subclass may compute something else.
    actor, critic_torso = module.actor, module.critic_torso
    # Pop-Art rescales the critic's output, which the closed-form backward pass does not know.
    if module.returns is not None:
        return None
    if type(module) is not ActorCritic or type(actor) is not CategoricalActor or type(actor.torso) is not Dense:
        return None
    if critic_torso is None:
        return ActorCriticLayers(Layers(actor.torso, None), Layers(None, actor.head), Layers(None, module.critic_head))
    if type(critic_torso) is not Dense or actor.layers is None:
        return None
    return ActorCriticLayers(None, actor.layers, Layers(critic_torso, module.critic_head))
