"""The actors of several policies, and one central critic of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import CriticInput, CriticSees
from marlflow.policy.actor_critic import ActorCritic, StochasticActor, stochastic_actor
from marlflow.policy.torso import TorsoConfig


class TeamActorCritic(nn.Module):
    """Publishes `actors` by policy; `critic` estimates returns of all their agents.

    `models` maps policies to their torsos; the critic has a torso like the first policy's. `first` is the ActorCritic
    of the first policy, with this critic. See ActorCritic for `normalize_values` and `critic_sees`.
    """

    def __init__(
        self,
        spaces: Mapping[str, Spaces],
        models: Mapping[str, TorsoConfig],
        seed: int,
        normalize_values: bool,
        critic_sees: Sequence[CriticSees],
    ) -> None:
        super().__init__()
        self.policies = tuple(spaces)
        name, *others = self.policies
        self.first = ActorCritic(spaces[name], models[name], models[name], seed, normalize_values, critic_sees)
        generator = torch.Generator().manual_seed(seed + 1)
        # No ModuleDict: a policy's name may be that of one of its methods, or contain a dot.
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
        """Yield the critic's parameters, with those of value normalization."""
        actors = {parameter for actor in self.actors.values() for parameter in actor.parameters()}
        return (parameter for parameter in self.parameters() if parameter not in actors)
