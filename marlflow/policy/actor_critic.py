"""An actor and a critic of one policy, with torsos of their own or a shared one."""

from __future__ import annotations

from typing import TypeAlias, cast

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.dense import Activation, Dense, as_rows, backward_layers, forward_layers, linear, through
from marlflow.policy.gaussian import GaussianActor
from marlflow.policy.torso import TorsoConfig

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
        if self.critic_torso is not None:
            return self.actor(obs), self.critic(obs)
        features = self.actor.torso(obs)
        return self.actor.head(features), self.critic_head(features).squeeze(-1)

    def critic(self, obs: Tensor) -> Tensor:
        """The values [N] of `obs` [N, ...]."""
        torso = self.actor.torso if self.critic_torso is None else self.critic_torso
        return through(torso, self.critic_head, obs).squeeze(-1)


def stochastic_actor(spaces: Spaces, torso: TorsoConfig, generator: torch.Generator) -> StochasticActor:
    """The actor that fits the action space; raises ConfigInvalid if there is none."""
    body, features = torso.build(spaces.obs_shape, generator)
    if isinstance(spaces.action, gym.Discrete):
        return CategoricalActor(body, features, spaces.num_actions, generator)
    if isinstance(spaces.action, gym.Box):
        return GaussianActor(body, features, spaces.action, generator)
    raise ConfigInvalid([f"a policy gradient needs Discrete or Box actions, not {spaces.action}"])


class DensePass:
    """A forward pass of an ActorCritic outside autograd, whose gradients `pull` writes in closed form.

    It can be made where `DensePass.fits(module)`: Discrete actions, fully connected torsos, on a CPU, and a `.grad`
    for each parameter to write into.
    """

    __slots__ = ("_actor", "_critic", "_shared", "logits", "value")

    @staticmethod
    def fits(module: ActorCritic) -> bool:
        """Whether `module` is of the kind that this is for."""
        torsos = (module.actor.torso, module.critic_torso or module.actor.torso)
        plain = isinstance(module.actor, CategoricalActor) and all(isinstance(torso, Dense) for torso in torsos)
        return plain and module.critic_head.weight.device.type == "cpu" and module.critic_head.weight.grad is not None

    def __init__(self, module: ActorCritic, obs: Tensor) -> None:
        self._shared: _Stack | None = None
        torso, critic_torso = cast(Dense, module.actor.torso), cast("Dense | None", module.critic_torso)
        x = as_rows(obs)
        if critic_torso is None:
            self._shared = _Stack(torso, None, x)
            x = self._shared.values[-1]
            self._actor, self._critic = _Stack(None, module.actor.head, x), _Stack(None, module.critic_head, x)
        else:
            self._actor, self._critic = _Stack(torso, module.actor.head, x), _Stack(critic_torso, module.critic_head, x)
        self.logits, self.value = self._actor.values[-1], self._critic.values[-1].squeeze(-1)

    def pull(self, d_logits: Tensor, d_value: Tensor) -> None:
        """Writes the gradient of every parameter, from those by `logits` [N, A] and by `value` [N]."""
        by_logits, by_value = self._actor.pull(d_logits), self._critic.pull(d_value.unsqueeze(-1))
        if self._shared is not None:
            by_features = torch.mm(by_logits, self._actor.parameters[0])
            self._shared.pull(by_features.addmm_(by_value, self._critic.parameters[0]))


class _Stack:
    """The layers of a torso, a head, or both, and what they made of `x`."""

    __slots__ = ("_activated", "_activation", "parameters", "values")

    def __init__(self, torso: Dense | None, head: nn.Linear | None, x: Tensor) -> None:
        self.parameters: list[Tensor] = [] if torso is None else list(torso.in_order)
        self._activated = len(self.parameters) // 2
        self._activation: Activation = "tanh" if torso is None else torso.activation
        if head is not None:
            self.parameters += (head.weight, head.bias)
        self.values = forward_layers(x, self.parameters, self._activation, self._activated)

    def pull(self, grad: Tensor) -> Tensor:
        return backward_layers(grad, self.values, self.parameters, self._activation, self._activated)
