"""Recurrent policies: torsos with memory, and actors that have one in front of a feed-forward actor's head.

Cho et al., 2014, arXiv:1406.1078 (GRU in cuDNN's form); Hochreiter and Schmidhuber, 1997,
doi:10.1162/neco.1997.9.8.1735, with the forget gate of Gers et al., 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from marlflow.base.arrays import Array
from marlflow.base.observations import ObservationLayout
from marlflow.base.random import RowRandom
from marlflow.base.ranges import Width
from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import OWN_OBSERVATION, CriticSees, critic_input
from marlflow.policy.actor import Mode, NetworkActor, Scheduled
from marlflow.policy.actor_critic import StochasticActor, critic_body, stochastic_head
from marlflow.policy.dense import Activation, linear, through
from marlflow.policy.normalized import ValueCritic
from marlflow.policy.q import QActor, q_head
from marlflow.policy.torso import MLP, TorsoConfig, build_for, build_torso


@runtime_checkable
class RecurrentTorsoConfig(TorsoConfig, Protocol):
    """Builds a RecurrentTorso."""

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """The shape of one agent's recurrent state."""
        ...


class RecurrentTorso(nn.Module):
    """Computes features from observations and recurrent state, which is zero at an episode's start.

    Acting takes one `step` for many agents; learning applies `unroll` to sequences.
    """

    def __init__(self, encoder: nn.Module, memory_shape: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.memory_shape = memory_shape
        self.features = features

    # The part of a step that does not depend on memory, [N, P] of `encoded` [N, E]: one call for a whole sequence.
    def _project(self, encoded: Tensor) -> Tensor:
        raise NotImplementedError

    # One step: features [N, F] and memory [N, *memory_shape] after it.
    def _cell(self, projected: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def step(self, obs: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [N, F] of `obs` [N, ...] and the next memory [N, *memory_shape]."""
        return self._cell(self._project(self.encoder(obs)), memory)

    def unroll(self, obs: Tensor, memory: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [S, T, F] of `obs` [S, T, ...] and the last memory [S, *memory_shape].

        Steps that are not `valid` (bool [S, T]) leave the memory as it is; their features are meaningless.
        """
        projected = self._project(self.encoder(obs.flatten(0, 1))).unflatten(0, obs.shape[:2])
        return scan_steps(self._cell, projected, memory, valid)


Cell: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(inputs [S, P], memory [S, ...]) -> features [S, F] and the memory after the step."""


def scan_steps(cell: Cell, inputs: Tensor, memory: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Apply `cell` to `inputs` [S, T, P], step by step; return features [S, T, F] and the last memory.

    Steps that are not `valid` (bool [S, T]) leave the memory as it is. In a compiled loss it is one loop, however
    many steps there are.
    """
    tensors = inputs, memory, valid
    if has_torch_function(tensors):
        scanned: tuple[Tensor, Tensor] = handle_torch_function(scan_steps, tensors, cell, *tensors)
        return scanned
    steps = []
    for inputs_t, valid_t in zip(inputs.unbind(1), valid.unbind(1), strict=True):
        features, after = cell(inputs_t, memory)
        memory = torch.where(valid_t.view(-1, *[1] * (memory.dim() - 1)), after, memory)
        steps.append(features)
    return torch.stack(steps, 1), memory


class GRUTorso(RecurrentTorso):
    """A GRU; its memory is its features, [H]."""

    def __init__(self, encoder: nn.Module, inputs: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__(encoder, (hidden,), hidden)
        self.by_input, self.by_memory = gates(3, inputs, hidden, generator)

    def _project(self, encoded: Tensor) -> Tensor:
        return functional.linear(encoded, self.by_input.weight, self.by_input.bias)

    def _cell(self, projected: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        hidden = memory.shape[1]
        # The reset gate applies to the memory's share after its linear layer and bias, as in cuDNN.
        from_memory = functional.linear(memory, self.by_memory.weight, self.by_memory.bias).to(memory.dtype)
        # In bfloat16 layers give other dtypes than the memory, which stays float32 over all steps.
        projected = projected.to(memory.dtype)
        reset, update = torch.sigmoid(projected[:, : 2 * hidden] + from_memory[:, : 2 * hidden]).chunk(2, 1)
        candidate = torch.tanh(torch.addcmul(projected[:, 2 * hidden :], reset, from_memory[:, 2 * hidden :]))
        after = torch.lerp(candidate, memory, update)
        return after, after


class LSTMTorso(RecurrentTorso):
    """An LSTM; its memory is features and cells, [2, H]."""

    def __init__(self, encoder: nn.Module, inputs: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__(encoder, (2, hidden), hidden)
        self.by_input, self.by_memory = gates(4, inputs, hidden, generator)

    def _project(self, encoded: Tensor) -> Tensor:
        return functional.linear(encoded, self.by_input.weight, self.by_input.bias)

    def _cell(self, projected: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        before, cells = memory.unbind(1)
        preactivations = torch.addmm(projected, before, self.by_memory.weight.t()) + self.by_memory.bias
        input_gate, forget_gate, candidate, output_gate = preactivations.chunk(4, 1)
        cells = torch.sigmoid(forget_gate) * cells + torch.sigmoid(input_gate) * torch.tanh(candidate)
        features = torch.sigmoid(output_gate) * torch.tanh(cells)
        return features, torch.stack((features, cells), 1)


def gates(count: int, inputs: int, hidden: int, generator: torch.Generator) -> tuple[nn.Linear, nn.Linear]:
    """Build the input and memory layers of `count` gates: orthogonal per gate, biases zero."""
    by_input, by_memory = nn.Linear(inputs, count * hidden), nn.Linear(hidden, count * hidden)
    for layer in (by_input, by_memory):
        nn.init.zeros_(layer.bias)
        for gate in layer.weight.chunk(count):
            nn.init.orthogonal_(gate, 1.0, generator)
    return by_input, by_memory


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """A recurrent layer over dense layers."""

    hidden_size: Width = 64  #: units of the recurrent layer
    encoder_sizes: Sequence[Width] = (64,)  #: units of each layer before the recurrent one
    activation: Activation = "tanh"  #: activation of these layers: tanh or relu

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        return self._build_over(*MLP(self.encoder_sizes, self.activation).build(obs_shape, generator), generator)

    def build_nested(self, layout: ObservationLayout, generator: torch.Generator) -> tuple[nn.Module, int]:
        return self._build_over(*build_for(layout, MLP(self.encoder_sizes, self.activation), generator), generator)

    def _build_over(self, encoder: nn.Module, inputs: int, generator: torch.Generator) -> tuple[nn.Module, int]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class GRU(RecurrentLayer):
    """A GRU over dense layers."""

    @property
    def memory_shape(self) -> tuple[int, ...]:
        return (self.hidden_size,)

    def _build_over(self, encoder: nn.Module, inputs: int, generator: torch.Generator) -> tuple[nn.Module, int]:
        return GRUTorso(encoder, inputs, self.hidden_size, generator), self.hidden_size


@dataclass(frozen=True, slots=True)
class LSTM(RecurrentLayer):
    """An LSTM over dense layers."""

    @property
    def memory_shape(self) -> tuple[int, ...]:
        return (2, self.hidden_size)

    def _build_over(self, encoder: nn.Module, inputs: int, generator: torch.Generator) -> tuple[nn.Module, int]:
        return LSTMTorso(encoder, inputs, self.hidden_size, generator), self.hidden_size


def without_memory(model: TorsoConfig) -> TorsoConfig:
    """Return dense layers of the sizes of a GRU or LSTM, or an MLP of default sizes for other recurrent models."""
    if not isinstance(model, RecurrentLayer):
        return MLP()
    return MLP((*model.encoder_sizes, model.hidden_size), model.activation)


def build_recurrent_torso(spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> tuple[RecurrentTorso, int]:
    """Build a recurrent torso over `obs`; return it and its number of features. See `build_torso`."""
    torso, features = build_torso(spaces, model, generator)
    return cast(RecurrentTorso, torso), features


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


class RecurrentActorCritic(ValueCritic):
    """Publishes `actor`; the critic shares and trains its torso.

    With `critic_sees` other than its own observation, the critic is central (see ActorCritic) and has dense layers of
    its own, without memory.
    """

    def __init__(
        self,
        spaces: Spaces,
        model: TorsoConfig,
        seed: int,
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

    @property
    def value_head(self) -> nn.Linear:
        return self.critic_head

    def forward(
        self, obs: Tensor, memory: Tensor, valid: Tensor, central: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return actor outputs [S, T, ...] of `obs` [S, T, ...] and values [S, T]; see `RecurrentTorso.unroll`.

        The critic sees `central` [S, T, ...] if it is central.
        """
        outputs, features, _ = self.actor.unroll(obs, memory, valid)
        if central is not None:
            return outputs, self.critic(central.flatten(0, 1)).unflatten(0, central.shape[:2])
        return outputs, self.as_values(self.critic_head(features))

    def critic(self, seen: Tensor, memory: Tensor | None = None) -> Tensor:
        """Return the values [N] of `seen`: observations [N, ...] given `memory` [N, ...], or rows of `central`."""
        if self.critic_torso is not None:
            output = through(self.critic_torso, self.critic_head, seen)
        else:
            assert memory is not None
            output = self.critic_head(self.actor.torso.step(seen, memory)[0])
        return self.as_values(output)


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
