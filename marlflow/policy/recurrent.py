"""Recurrent torsos: GRU and LSTM over dense layers.

Cho et al., 2014, arXiv:1406.1078 (GRU in cuDNN's form); Hochreiter and Schmidhuber, 1997,
doi:10.1162/neco.1997.9.8.1735, with the forget gate of Gers et al., 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from marlflow.base.observations import ObservationLayout
from marlflow.base.ranges import Width
from marlflow.base.spaces import Spaces
from marlflow.policy.dense import Activation
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
class GRU:
    """A GRU over dense layers."""

    hidden_size: Width = 64
    encoder_sizes: Sequence[Width] = (64,)
    activation: Activation = "tanh"

    @property
    def memory_shape(self) -> tuple[int, ...]:
        return (self.hidden_size,)

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        return self._build_over(*MLP(self.encoder_sizes, self.activation).build(obs_shape, generator), generator)

    def build_nested(self, layout: ObservationLayout, generator: torch.Generator) -> tuple[nn.Module, int]:
        return self._build_over(*build_for(layout, MLP(self.encoder_sizes, self.activation), generator), generator)

    def _build_over(self, encoder: nn.Module, inputs: int, generator: torch.Generator) -> tuple[nn.Module, int]:
        return GRUTorso(encoder, inputs, self.hidden_size, generator), self.hidden_size


@dataclass(frozen=True, slots=True)
class LSTM:
    """An LSTM over dense layers."""

    hidden_size: Width = 64
    encoder_sizes: Sequence[Width] = (64,)
    activation: Activation = "tanh"

    @property
    def memory_shape(self) -> tuple[int, ...]:
        return (2, self.hidden_size)

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        return self._build_over(*MLP(self.encoder_sizes, self.activation).build(obs_shape, generator), generator)

    def build_nested(self, layout: ObservationLayout, generator: torch.Generator) -> tuple[nn.Module, int]:
        return self._build_over(*build_for(layout, MLP(self.encoder_sizes, self.activation), generator), generator)

    def _build_over(self, encoder: nn.Module, inputs: int, generator: torch.Generator) -> tuple[nn.Module, int]:
        return LSTMTorso(encoder, inputs, self.hidden_size, generator), self.hidden_size


def without_memory(model: TorsoConfig) -> TorsoConfig:
    """Return dense layers of the sizes of a GRU or LSTM, or an MLP of default sizes for other recurrent models."""
    if not isinstance(model, GRU | LSTM):
        return MLP()
    return MLP((*model.encoder_sizes, model.hidden_size), model.activation)


def build_recurrent_torso(spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> tuple[RecurrentTorso, int]:
    """Build a recurrent torso over `obs`; return it and its number of features. See `build_torso`."""
    torso, features = build_torso(spaces, model, generator)
    return cast(RecurrentTorso, torso), features
