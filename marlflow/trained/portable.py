"""A policy's network as a plain torch module with named inputs and outputs, to be run without marlflow.

Sampling is left to the caller: the module returns the parameters of the distribution, and the greedy action.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.observations import Leaf, named
from marlflow.base.spaces import DISCRETE_KINDS, Spaces
from marlflow.policy.actor import NetworkActor
from marlflow.policy.box import DeterministicActor, GaussianActor, SquashedGaussianActor, mean_and_log_std
from marlflow.policy.categorical import LOWEST, CategoricalActor, MultiCategoricalActor
from marlflow.policy.normalized import NormalizedRows
from marlflow.policy.q import QActor
from marlflow.policy.recurrent import RecurrentNetworkActor

Kind = Literal["observation", "memory", "action_mask"]
Outputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Port:
    """An input: its name, dtype, shape of one row, and kind. An observation input has one `leaf` of the observation."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    kind: Kind
    leaf: Leaf | None = None


class PortableActor(nn.Module):
    """Computes the same as `network`, from one tensor for each of `inputs`; raises ConfigInvalid for other actors.

    A nested observation has an input for each of its leaves. Masked actions have the lowest finite number as logit or
    value.
    """

    def __init__(self, network: nn.Module | None, spaces: Spaces) -> None:
        super().__init__()
        if not isinstance(network, NetworkActor):
            raise ConfigInvalid([f"a {type(network).__name__} cannot be exported: it is no NetworkActor"])
        self.network = network
        self._layout = spaces.layout()
        # A subclass may choose otherwise than its head.
        head = network.head if type(network) is RecurrentNetworkActor else network
        self._head, self._spaces = head, spaces
        self._outputs = _outputs_of(head, spaces)
        self.has_memory = isinstance(network, RecurrentNetworkActor)
        self.inputs = list[Port]()
        for leaf in self._layout.leaves:
            self.inputs.append(_port(leaf, self._layout.form == "plain", {port.name for port in self.inputs}))
        self._leaves = len(self.inputs)
        if isinstance(network, RecurrentNetworkActor):
            self.inputs.append(Port("memory", np.dtype(np.float32), network.memory_shape, "memory"))
        if spaces.masked:
            self.inputs.append(Port("action_mask", np.dtype(np.bool_), (spaces.mask_width,), "action_mask"))
        with torch.no_grad():
            self.outputs = list(self._named(*self.example(2)))

    @property
    def distribution(self) -> dict[str, Any] | None:
        """How to sample an action from the outputs, as plain data; None if the policy is greedy."""
        return _distribution(self._head, self._spaces)

    @property
    def normalization(self) -> list[dict[str, Any]]:
        """The running moments in the network: observations need not be normalized before."""
        parts = [part for part in self.network.modules() if isinstance(part, NormalizedRows)]
        return [
            {"what": "observations", "rows": float(part.moments.count), "where": "inside the network"} for part in parts
        ]

    def example(self, rows: int) -> list[Tensor]:
        """Return inputs of `rows` rows: zeros, and masks in which all actions are legal."""
        make: Mapping[Kind, Callable[..., Array]] = {
            "observation": np.zeros,
            "memory": np.zeros,
            "action_mask": np.ones,
        }
        return [torch.from_numpy(make[port.kind]((rows, *port.shape), port.dtype)) for port in self.inputs]

    def output_kinds(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype and the shape of one row of each output."""
        with torch.no_grad():
            arrays = {name: tensor.numpy() for name, tensor in self._named(*self.example(1)).items()}
        return {name: (str(array.dtype), array.shape[1:]) for name, array in arrays.items()}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the `outputs`, [N, ...] each, of inputs [N, ...]."""
        return tuple(self._named(*inputs).values())

    def _named(self, *inputs: Tensor) -> Outputs:
        by_kind = {port.kind: tensor for port, tensor in zip(self.inputs, inputs, strict=True)}
        outputs, memory = self.network.outputs(self._rows(inputs[: self._leaves]), by_kind.get("memory"))
        named_outputs = self._outputs(outputs, by_kind.get("action_mask"))
        return named_outputs if memory is None else {**named_outputs, "next_memory": memory}

    def _rows(self, leaves: Sequence[Tensor]) -> Any:
        if self._layout.form == "plain":
            return leaves[0]
        flat = [leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1) for leaf in leaves]
        if self._layout.form == "flat":
            return torch.cat(flat, 1)
        return LeafRows({leaf.start: tensor for leaf, tensor in zip(self._layout.leaves, flat, strict=True)})

    def inputs_of(self, rows: Array, memory: Array | None, action_mask: Array | None) -> dict[str, Array]:
        """Return the inputs by name for rows [N, ...] of the columns `obs`, `memory` and `action_mask`."""
        leaves = self._layout.read(rows)
        others: dict[Kind, Array | None] = {"memory": memory, "action_mask": action_mask}
        found = {
            port.name: others.get(port.kind) if port.leaf is None else leaves[port.leaf.path] for port in self.inputs
        }
        # Copied: a leaf of a row of bytes is a view, with strides that torch does not take.
        return {name: array.copy() for name, array in found.items() if array is not None}

    def named(self, raw: Tensor, action_mask: Tensor | None) -> Outputs:
        """Return the outputs without the memory, given the result of the network's `outputs`."""
        return self._outputs(raw, action_mask)


class LeafRows:
    """Stands for rows of bytes, of which readers take one leaf each; here every leaf is a tensor of its own dtype."""

    def __init__(self, leaves: Mapping[int, Tensor]) -> None:
        self._leaves = leaves
        self.shape = (next(iter(leaves.values())).shape[0], None)

    def __getitem__(self, index: tuple[slice, slice]) -> Tensor:
        return self._leaves[index[1].start]


def _port(leaf: Leaf, plain: bool, taken: Collection[str]) -> Port:
    joined = ".".join(["obs", *map(str, leaf.path)])
    # Keys with dots may join to the same name as nested ones.
    name, at = joined, 2
    while name in taken:
        name, at = f"{joined}_{at}", at + 1
    return Port(name, leaf.dtype, leaf.space.shape or () if plain else leaf.shape, "observation", leaf)


def _outputs_of(head: nn.Module, spaces: Spaces) -> Callable[[Tensor, Tensor | None], Outputs]:
    kinds: Mapping[type, Callable[[Any, Spaces, Tensor, Tensor | None], Outputs]] = {
        CategoricalActor: _logits,
        QActor: _values,
        MultiCategoricalActor: _components,
        GaussianActor: _gaussian,
        SquashedGaussianActor: _squashed,
        DeterministicActor: _deterministic,
    }
    outputs = kinds.get(type(head), _raw)
    return lambda raw, mask: outputs(head, spaces, raw, mask)


def _raw(_head: Any, _spaces: Spaces, outputs: Tensor, _mask: Tensor | None) -> Outputs:
    # A user's own actor: the meaning of its numbers is not known here.
    return {"outputs": outputs}


def _masked(outputs: Tensor, mask: Tensor | None) -> Tensor:
    return outputs if mask is None else torch.where(mask, outputs, torch.full_like(outputs, LOWEST))


def _logits(_head: CategoricalActor, spaces: Spaces, outputs: Tensor, mask: Tensor | None) -> Outputs:
    logits = _masked(outputs, mask)
    return {"logits": logits, "action": _as_taken(logits.argmax(1) + int(_start(spaces)), spaces)}


def _values(_head: QActor, spaces: Spaces, outputs: Tensor, mask: Tensor | None) -> Outputs:
    values = _masked(outputs.float(), mask)
    return {"q_values": values, "action": _as_taken(values.argmax(1) + int(_start(spaces)), spaces)}


def _components(_head: MultiCategoricalActor, spaces: Spaces, outputs: Tensor, mask: Tensor | None) -> Outputs:
    logits = _masked(outputs, mask)
    chosen = torch.stack([part.argmax(1) for part in logits.split(list(spaces.choices), 1)], 1)
    action = chosen.unflatten(1, spaces.action_shape) + torch.from_numpy(np.asarray(_start(spaces), np.int64))
    return {"logits": logits, "action": _as_taken(action, spaces)}


def _gaussian(head: GaussianActor, spaces: Spaces, outputs: Tensor, _mask: Tensor | None) -> Outputs:
    mean, log_std = outputs.chunk(2, 1)
    action = torch.clamp(head.center + head.scale * mean, head.low, head.high)
    return {"mean": mean, "log_std": log_std, "action": _shaped(action, spaces)}


def _squashed(head: SquashedGaussianActor, spaces: Spaces, outputs: Tensor, _mask: Tensor | None) -> Outputs:
    mean, log_std = mean_and_log_std(outputs)
    return {"mean": mean, "log_std": log_std, "action": _in_box(head, torch.tanh(mean), spaces)}


def _deterministic(head: DeterministicActor, spaces: Spaces, outputs: Tensor, _mask: Tensor | None) -> Outputs:
    return {"action": _in_box(head, outputs, spaces)}


def _in_box(head: SquashedGaussianActor | DeterministicActor, action: Tensor, spaces: Spaces) -> Tensor:
    box = spaces.action
    assert isinstance(box, gym.Box)
    low, high = (torch.from_numpy(bound.astype(np.float32).ravel()) for bound in (box.low, box.high))
    return _shaped(torch.clamp(head.box.center + head.box.scale * action, low, high), spaces)


def _shaped(action: Tensor, spaces: Spaces) -> Tensor:
    return _as_taken(action.unflatten(1, spaces.action_shape) if spaces.action_shape else action.squeeze(1), spaces)


def _as_taken(action: Tensor, spaces: Spaces) -> Tensor:
    """Return actions in the dtype of their space, as `sampling.acting_policy.ActionDecoder` does."""
    space = spaces.action
    taken = action.to(torch.from_numpy(np.empty(0, space.dtype)).dtype)
    if isinstance(space, gym.Box) and space.dtype == np.float64:
        # A float64 bound rounded to float32 may lie outside of the space.
        for bound in (space.low, space.high):
            is_there = action == torch.from_numpy(bound.astype(np.float32))
            taken = torch.where(is_there, torch.from_numpy(bound), taken)
    return taken


def _distribution(head: nn.Module, spaces: Spaces) -> dict[str, Any] | None:
    if isinstance(head, CategoricalActor | MultiCategoricalActor):
        start = np.asarray(_start(spaces)).tolist()
        how = "sample each component from the softmax of its logits, and add start"
        return {"kind": "categorical", "components": list(spaces.choices), "start": start, "sample": how}
    if isinstance(head, GaussianActor | SquashedGaussianActor):
        box: Any = head if isinstance(head, GaussianActor) else head.box
        squashed = isinstance(head, SquashedGaussianActor)
        inner = "mean + exp(log_std) * noise"
        how = f"clip(center + scale * {f'tanh({inner})' if squashed else f'({inner})'}, low, high)"
        action: Any = spaces.action
        low, high = (
            [float(number) if np.isfinite(number) else None for number in bound.ravel()]
            for bound in (action.low, action.high)
        )
        named_numbers = {"center": box.center.tolist(), "scale": box.scale.tolist(), "low": low, "high": high}
        return {"kind": "squashed Gaussian" if squashed else "Gaussian", **named_numbers, "sample": how}
    return None


def _start(spaces: Spaces) -> Any:
    return getattr(spaces.action, "start", 0) if isinstance(spaces.action, DISCRETE_KINDS) else 0


def described_leaf(leaf: Leaf) -> dict[str, Any]:
    """Return a leaf as plain data: its path in the observation, its space, and how it is encoded."""
    one_hot = isinstance(leaf.space, gym.Discrete | gym.MultiDiscrete)
    return {
        "of": named(leaf.path),
        "path": list(leaf.path),
        "space": str(leaf.space),
        "encoding": "one-hot, the least value first" if one_hot else "its own numbers",
    }
