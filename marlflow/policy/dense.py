"""Fully connected layers, and a faster way through them without gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

Activation: TypeAlias = Literal["tanh", "relu"]

# In place, because the backward pass needs only the result.
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh_, "relu": torch.relu_}
ALIGNED = 16
"""Numbers in a cache line of 64 bytes, at which torch aligns a tensor of float32."""
_GAIN = math.sqrt(2.0)


class Dense(nn.Module):
    """Fully connected layers, each with an activation, over the flattened observation."""

    def __init__(self, sizes: Sequence[int], activation: Activation, generator: torch.Generator) -> None:
        super().__init__()
        layers = [linear(inputs, outputs, _GAIN, generator) for inputs, outputs in pairwise(sizes)]
        self.layers = nn.ModuleList(layers)
        self.activation = activation

    def forward(self, obs: Tensor) -> Tensor:
        """Return features [N, F] of `obs` [N, ...]."""
        if not torch.is_grad_enabled() and (plain := plain_layers(self, None)) is not None:
            return plain.run(as_rows(obs))
        x = as_rows(obs)
        for layer in self.layers:
            x = ACTIVATIONS[self.activation](layer(x))
        return x


def through(torso: nn.Module, head: nn.Module, obs: Tensor) -> Tensor:
    """Return `head(torso(obs))`, without autograd if gradients are off and nothing but plain layers computes it."""
    if not torch.is_grad_enabled() and (plain := plain_layers(torso, head)) is not None:
        return plain.run(as_rows(obs))
    outputs: Tensor = head(torso(obs))
    return outputs


def plain_layers(torso: nn.Module | None, head: nn.Module | None) -> Layers | None:
    """Return the layers of a torso and a head as they are now.

    None if a subclass, a hook, a layer without bias or anything else of a user's takes part.
    """
    # Called at every env step, so by dictionaries, which are quicker than nn.Module's attributes. Exact types: a
    # subclass may compute something else, as torch's parametrizations do.
    if torso is None or not is_plain(torso, Dense):
        return None
    layers = [*torso._modules["layers"]._modules.values()]  # type: ignore[union-attr]
    activated = len(layers)
    if head is not None:
        layers.append(head)
    parameters: list[Tensor] = []
    for layer in layers:
        if not is_plain(layer, nn.Linear):
            return None
        weight, bias = layer._parameters.get("weight"), layer._parameters.get("bias")
        if weight is None or bias is None:
            return None
        parameters += (weight, bias)
    return Layers(parameters, activated, torso.__dict__["activation"])


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module computes what `kind` does: it is no subclass, and has no hook or `forward` of its own."""
    own = module.__dict__
    return type(module) is kind and not (own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own)


def linear(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> nn.Linear:
    """Build a linear layer with orthogonal weights and zero biases."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain, generator)
    nn.init.zeros_(layer.bias)
    return layer


def as_rows(obs: Tensor) -> Tensor:
    """Flatten observations to float32 [N, D]."""
    x = obs if obs.dtype == torch.float32 else obs.float()
    if x.dim() == 2:
        return x
    return x.flatten(1) if x.dim() > 2 else x.unsqueeze(1)


def forward_layers(x: Tensor, parameters: Sequence[Tensor], activation: Activation, activated: int) -> Tensor:
    """Return the last layer's output [N, F] of `x` [N, D], without autograd.

    `parameters` are each layer's weight and bias in turn; only the first `activated` layers have the activation.
    """
    for index in range(len(parameters) // 2):
        x = torch.addmm(parameters[2 * index + 1], x, parameters[2 * index].t())
        if index < activated:
            _activate(x, activation)
    return x


def _activate(x: Tensor, activation: Activation) -> None:
    if activation == "relu":
        x.relu_()
    elif x.device.type == "cpu" and x.dtype == torch.float32:
        # numpy's tanh writes into the tensor's own memory.
        array = x.numpy()
        np.tanh(array, out=array)
    else:
        x.tanh_()


class Layers:
    """Layers that are run without autograd: `parameters` are each one's weight and bias in turn.

    The first `activated` ones have the activation.
    """

    __slots__ = ("_activated", "_activation", "parameters")

    def __init__(self, parameters: Sequence[Tensor], activated: int, activation: Activation) -> None:
        self.parameters, self._activated, self._activation = parameters, activated, activation

    def run_batched(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Return the last layer's output [G, R, F] of `x` [G, R, D], for G members with `parameters` [G, ...] each."""
        for index in range(len(parameters) // 2):
            weight, bias = parameters[2 * index], parameters[2 * index + 1]
            x = torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))
            if index < self._activated:
                _activate(x, self._activation)
        return x

    def run_grouped(self, x: Tensor, counts: Sequence[int], members: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return the last layer's output [N, F] of `x` [N, D]: `counts[g]` rows by parameters `members[g]`."""
        for index in range(len(self.parameters) // 2):
            parts = x.split(counts)
            if x.shape[1] % ALIGNED:
                # A product of rows that begin elsewhere than a whole cache line is rounded otherwise.
                parts = tuple(part.clone() for part in parts)
            products = [
                torch.addmm(own[2 * index + 1], part, own[2 * index].t())
                for part, own in zip(parts, members, strict=True)
            ]
            x = torch.cat(products)
            if index < self._activated:
                _activate(x, self._activation)
        return x

    def run(self, x: Tensor) -> Tensor:
        """Return the last layer's output [N, F] of `x` [N, D]."""
        return forward_layers(x, self.parameters, self._activation, self._activated)
