"""Recurrent policies: a recurrent torso in front of a feed-forward actor's head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom
from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import OWN_OBSERVATION, CriticSees, critic_input
from marlflow.policy.actor import Mode
from marlflow.policy.actor_critic import StochasticActor, critic_body, stochastic_head
from marlflow.policy.dense import linear, through
from marlflow.policy.network_actor import NetworkActor, Scheduled
from marlflow.policy.normalized import ReturnScale, in_units_of
from marlflow.policy.q import QActor, q_head
from marlflow.policy.recurrent import RecurrentTorso, build_recurrent_torso, without_memory
from marlflow.policy.torso import TorsoConfig

Head = TypeVar("Head", bound=StochasticActor | QActor)


class RecurrentNetworkActor(NetworkActor, Generic[Head]):
    """Acts as `head` does on the features of `torso`; the head's own torso is nn.Identity."""

    def __init__(self, torso: RecurrentTorso, head: Head) -> None:
        super().__init__()
        self.torso = torso
        self.head: Head = head
        self.memory_shape = torso.memory_shape

    def unroll(self, obs: Tensor, memory: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the head's outputs [S, T, ...], features [S, T, F] and last memory; see `RecurrentTorso.unroll`."""
        features, after = self.torso.unroll(obs, memory, valid)
        outputs: Tensor = self.head(features.flatten(0, 1))
        return outputs.unflatten(0, features.shape[:2]), features, after

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert memory is not None
        features, after = self.torso.step(obs, memory)
        # The recurrent features are the head's observation.
        return self.head.outputs(features, None)[0], after

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        return self.head.choose(outputs, action_mask, mode, generator)

    def set_schedule(self, values: Mapping[str, Scheduled]) -> None:
        self.head.set_schedule(values)

    def move_to(self, device: str) -> None:
        super().move_to(device)
        self.head.move_to(device)


def recurrent_stochastic_actor(
    spaces: Spaces, model: TorsoConfig, generator: torch.Generator
) -> RecurrentNetworkActor[StochasticActor]:
    """Build the recurrent actor for the action space; raises ConfigInvalid if none fits."""
    torso, features = build_recurrent_torso(spaces, model, generator)
    return RecurrentNetworkActor(torso, stochastic_head(spaces, nn.Identity(), features, generator))


class RecurrentActorCritic(nn.Module):
    """Publishes `actor`; the critic shares and trains its torso.

    `normalize_values`: value normalization by Pop-Art (see ReturnScale). With `critic_sees` other than its own
    observation, the critic is central (see ActorCritic) and has dense layers of its own, without memory.
    """

    def __init__(
        self,
        spaces: Spaces,
        model: TorsoConfig,
        seed: int,
        normalize_values: bool = False,
        critic_sees: Sequence[CriticSees] = OWN_OBSERVATION,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.actor = recurrent_stochastic_actor(spaces, model, generator)
        self.critic_torso: nn.Module | None = None
        self.critic_input = critic_input(spaces, critic_sees)
        features = self.actor.torso.features
        if self.critic_input is not None:
            self.critic_torso, features = critic_body(spaces, self.critic_input, without_memory(model), generator)
        self.critic_head = linear(features, 1, 1.0, generator)
        self.returns = ReturnScale(self.critic_head) if normalize_values else None

    def forward(
        self, obs: Tensor, memory: Tensor, valid: Tensor, central: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return actor outputs [S, T, ...] of `obs` [S, T, ...] and values [S, T]; see `RecurrentTorso.unroll`.

        The values are those of `central` [S, T, ...] if the critic is central.
        """
        outputs, features, _ = self.actor.unroll(obs, memory, valid)
        if central is not None:
            return outputs, self.critic(central.flatten(0, 1)).unflatten(0, central.shape[:2])
        return outputs, in_units_of(self.returns, self.critic_head(features).squeeze(-1))

    def critic(self, seen: Tensor, memory: Tensor | None = None) -> Tensor:
        """Return the values [N] of `seen`: observations [N, ...] given `memory` [N, ...], or rows of `central`."""
        if self.critic_torso is not None:
            output = through(self.critic_torso, self.critic_head, seen)
        else:
            assert memory is not None
            output = self.critic_head(self.actor.torso.step(seen, memory)[0])
        return in_units_of(self.returns, output.squeeze(-1))

    def value_error(self, squared: Tensor) -> Tensor:
        """Convert squared value errors to the squared units of the critic's head."""
        return squared if self.returns is None else squared / self.returns.variance


class RecurrentQNetwork(nn.Module):
    """The network of R2D2, a recurrent Q-learner; publishes the epsilon-greedy `actor`. `gain`: see `q_head`."""

    def __init__(self, spaces: Spaces, model: TorsoConfig, dueling: bool, seed: int, gain: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        torso, features = build_recurrent_torso(spaces, model, generator)
        head = q_head(features, spaces.num_actions, dueling, generator, gain)
        self.actor = RecurrentNetworkActor(torso, QActor(nn.Identity(), head))

    def forward(self, obs: Tensor, memory: Tensor, valid: Tensor, burn_in: int) -> Tensor:
        """Return action values [S, T - burn_in, A] of `obs` [S, T, ...], given memory [S, ...] and bool `valid` [S, T].

        The first `burn_in` steps only refresh the memory (Kapturowski et al., 2019,
        https://openreview.net/forum?id=r1lyTjAqYX, section 3).
        """
        return unrolled_after(burn_in, self.actor, obs, memory, valid)


def unrolled_after(
    burn_in: int, actor: RecurrentNetworkActor[Head], obs: Tensor, memory: Tensor, valid: Tensor
) -> Tensor:
    """Return the actor's outputs [S, T - burn_in, ...]; the first `burn_in` steps only refresh the memory."""
    if burn_in:
        with torch.no_grad():
            _, memory = actor.torso.unroll(obs[:, :burn_in], memory, valid[:, :burn_in])
    outputs, _, _ = actor.unroll(obs[:, burn_in:], memory, valid[:, burn_in:])
    return outputs
