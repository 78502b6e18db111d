"""Actor and critic of one policy, with separate torsos or a shared one; actors of several policies with one critic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import DISCRETE_KINDS, Spaces
from marlflow.batches.critic_input import OWN_OBSERVATION, CriticInput, CriticSees, critic_input
from marlflow.policy.box import GaussianActor, fixed_components
from marlflow.policy.categorical import CategoricalActor, MultiCategoricalActor
from marlflow.policy.dense import linear, through
from marlflow.policy.normalized import NormalizedRows, ValueCritic
from marlflow.policy.torso import TorsoConfig, build_for, build_torso

StochasticActor: TypeAlias = CategoricalActor | MultiCategoricalActor | GaussianActor


class ActorCritic(ValueCritic):
    """Publishes `actor`; `critic` estimates returns.

    With `critic_torso` None the critic shares and trains the actor's torso. With `critic_sees` other than its own
    observation, the critic is central: it has rows of `critic_input`, the column `central`, and needs a `critic_torso`.
    """

    def __init__(
        self,
        spaces: Spaces,
        torso: TorsoConfig,
        critic_torso: TorsoConfig | None,
        seed: int,
        critic_sees: Sequence[CriticSees] = OWN_OBSERVATION,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.actor = stochastic_actor(spaces, torso, generator)
        self.critic_torso: nn.Module | None = None
        self.critic_input = critic_input(spaces, critic_sees)
        features = self.actor.head.in_features
        if critic_torso is not None:
            self.critic_torso, features = critic_body(spaces, self.critic_input, critic_torso, generator)
        self.critic_head = linear(features, 1, 1.0, generator)

    @property
    def value_head(self) -> nn.Linear:
        return self.critic_head

    def forward(self, obs: Tensor, central: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the actor's outputs [N, ...] of `obs` [N, ...], and the critic's values [N].

        The critic sees `obs`, or `central` [N, ...] if it is central.
        """
        if self.critic_torso is not None:
            return self.actor(obs), self.critic(obs if central is None else central)
        features = self.actor.torso(obs)
        return self.actor.head(features), self.as_values(self.critic_head(features))

    def critic(self, obs: Tensor) -> Tensor:
        """Return the values [N] of `obs` [N, ...], or of rows of `central` if the critic is central."""
        torso = self.actor.torso if self.critic_torso is None else self.critic_torso
        return self.as_values(through(torso, self.critic_head, obs))


def critic_body(
    spaces: Spaces, seen: CriticInput | None, model: TorsoConfig, generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Build a critic's torso and return it with its number of features; `seen` None is the column `obs`."""
    if seen is None:
        return build_torso(spaces, model, generator)
    torso, features = build_for(seen.layout, model, generator)
    for part in torso.modules():
        if isinstance(part, NormalizedRows):
            part.column = "central"
    return torso, features


def stochastic_actor(spaces: Spaces, torso: TorsoConfig, generator: torch.Generator) -> StochasticActor:
    """Build the actor for the action space; raises ConfigInvalid if none fits."""
    return stochastic_head(spaces, *build_torso(spaces, torso, generator), generator)


def stochastic_head(spaces: Spaces, body: nn.Module, features: int, generator: torch.Generator) -> StochasticActor:
    """Build the actor for the action space on `body`, which outputs [N, features]."""
    if isinstance(spaces.action, gym.Discrete):
        return CategoricalActor(body, features, spaces.num_actions, generator)
    if isinstance(spaces.action, gym.Box):
        # Bounds may be infinite here.
        if not (spaces.action.low < spaces.action.high).all():
            raise ConfigInvalid([fixed_components(spaces.action)])
        return GaussianActor(body, features, spaces.action, generator)
    if isinstance(spaces.action, DISCRETE_KINDS):
        return MultiCategoricalActor(body, features, spaces.choices, spaces.action_shape, generator)
    raise ConfigInvalid([f"a policy gradient needs whole-number or Box actions, not {spaces.action}"])


class TeamActorCritic(nn.Module):
    """Publishes `actors` by policy; `critic` estimates returns of all their agents.

    `models` maps policies to their torsos; the critic has a torso like the first policy's. `first` is the ActorCritic
    of the first policy, with this critic. See ActorCritic for `critic_sees`.
    """

    def __init__(
        self,
        spaces: Mapping[str, Spaces],
        models: Mapping[str, TorsoConfig],
        seed: int,
        critic_sees: Sequence[CriticSees],
    ) -> None:
        super().__init__()
        self.policies = tuple(spaces)
        name, *others = self.policies
        self.first = ActorCritic(spaces[name], models[name], models[name], seed, critic_sees)
        generator = torch.Generator().manual_seed(seed + 1)
        # No ModuleDict: a policy's name may equal the name of one of its methods, or contain a dot.
        self.others = nn.ModuleList(stochastic_actor(spaces[other], models[other], generator) for other in others)

    @property
    def actors(self) -> dict[str, StochasticActor]:
        """The actors by policy."""
        return dict(zip(self.policies, [self.first.actor, *self.others], strict=True))

    @property
    def critic_input(self) -> CriticInput | None:
        """The rows that the critic sees; None if it sees the column `obs`."""
        return self.first.critic_input

    def critic(self, obs: Tensor) -> Tensor:
        """Return the values [N] of rows of `central` [N, ...], or of `obs` if the critic is not central."""
        return self.first.critic(obs)

    def value_error(self, squared: Tensor) -> Tensor:
        """Convert squared value errors to the squared units of the critic's head."""
        return self.first.value_error(squared)

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the critic's parameters, including the parameters of value normalization."""
        actors = {parameter for actor in self.actors.values() for parameter in actor.parameters()}
        return (parameter for parameter in self.parameters() if parameter not in actors)
