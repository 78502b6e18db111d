"""Actors that adapt to a task by gradient steps on their own parameters (MAML), separately per environment.

Finn et al., "Model-agnostic meta-learning", 2017, https://arxiv.org/abs/1703.03400, algorithm 3, lines 5 to 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Mode, WeightedActor
from marlflow.policy.categorical import CategoricalActor, log_prob_and_entropy, sample
from marlflow.policy.tensors import as_array, as_tensor, in_flat_order


@runtime_checkable
class AdaptingActor(WeightedActor, Protocol):
    """An actor that adapts `inner_steps` times per collection, separately for each environment.

    actor.restart(); ...; actor.adapt(env_indices, rows); ...; actor.restart()
    """

    inner_steps: int
    taken: int
    """Inner steps since the last restart."""

    def restart(self) -> None:
        """Return to the published parameters in every environment."""
        ...

    def adapt(self, env_indices: Array, rows: Mapping[str, Array]) -> None:
        """Take one inner step in each of `env_indices` [C] on its own rows, [C, R, ...]."""
        ...


class FlatNetwork:
    """A network of Discrete actions as a differentiable function of flat parameters, batched over T tasks."""

    def __init__(self, network: CategoricalActor) -> None:
        self._network = network
        name_of = {parameter: name for name, parameter in network.named_parameters()}
        self._ordered = in_flat_order(network)
        self._names = [name_of[parameter] for parameter in self._ordered]
        self._sizes = [parameter.numel() for parameter in self._ordered]
        learns = [torch.full((parameter.numel(),), float(parameter.requires_grad)) for parameter in self._ordered]
        self.learns = torch.cat(learns)
        """1 for each trainable number, 0 for the others, [P]."""

    def parameters(self) -> Tensor:
        """Return the network's parameters, [P]; gradients flow back to them."""
        return torch.cat([parameter.reshape(-1) for parameter in self._ordered])

    def __call__(self, parameters: Tensor, obs: Tensor) -> Tensor:
        """Return logits [T, N, A] of `obs` [T, N, ...], given `parameters` [T, P]."""
        logits: Tensor = vmap(self._logits)(parameters, obs)
        return logits

    def _logits(self, parameters: Tensor, obs: Tensor) -> Tensor:
        parts = zip(self._names, parameters.split(self._sizes), self._ordered, strict=True)
        named = {name: part.view(like.shape) for name, part, like in parts}
        logits: Tensor = functional_call(self._network, named, (obs,))
        return logits

    def log_prob(self, parameters: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return log-probabilities [T, N] of the actions in `rows`, [T, N, ...]."""
        logits = self(parameters, rows["obs"])
        return log_prob_and_entropy(logits, rows["action"], rows.get("action_mask"))[0]


InnerUpdate: TypeAlias = Callable[[FlatNetwork, Tensor, Mapping[str, Tensor]], Tensor]
"""Updates parameters [T, P] on one batch of rows [T, N, ...] per task."""


class AdaptedActor:
    """Acts with `network`; after `adapt` each environment has its own parameters, updated by `step`."""

    def __init__(self, network: CategoricalActor, inner_steps: int, step: InnerUpdate) -> None:
        self.network = network
        self.inner_steps = inner_steps
        self._step = step
        self._function = FlatNetwork(network)
        self.restart()

    def restart(self) -> None:
        self.taken = 0
        self._adapted: dict[int, Tensor] = {}
        self._row_layout: _RowLayout | None = None

    def parameters_of(self, env_index: int) -> Tensor:
        """Return an environment's current parameters, [P]."""
        adapted = self._adapted.get(env_index)
        return self._function.parameters().detach() if adapted is None else adapted

    def adapt(self, env_indices: Array, rows: Mapping[str, Array]) -> None:
        self.taken += 1
        self._row_layout = None
        if not len(env_indices):
            return
        before = torch.stack([self.parameters_of(env_index) for env_index in env_indices.tolist()]).requires_grad_()
        tensors = {name: as_tensor(column) for name, column in rows.items()}
        with torch.enable_grad():
            after = self._step(self._function, before, tensors).detach()
        self._adapted |= dict(zip(env_indices.tolist(), after, strict=True))

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        if not self._adapted:
            return self.network.act(obs, action_mask, memory, mode, generator)
        layout = self._layout_of(generator.env_indices)
        # With gradients off, Dense computes in numpy, which cannot be vectorized over stacked parameters.
        with torch.enable_grad():
            by_env = self._function(layout.parameters, layout.scatter(obs))
        logits = as_array(by_env.detach())[layout.env, layout.place]
        action, logp = sample(logits, action_mask, generator.uniform() if mode != "greedy" else None)
        return Acted(action, logp, memory)

    def _layout_of(self, env_indices: Array) -> _RowLayout:
        if self._row_layout is None or not np.array_equal(self._row_layout.env_indices, env_indices):
            distinct, env_of_row, counts = np.unique(env_indices, return_inverse=True, return_counts=True)
            # Rows of one environment get consecutive places, so that all fit into a dense [C, R] layout.
            place = np.empty(len(env_of_row), np.int64)
            place[np.argsort(env_of_row, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
            stacked = torch.stack([self.parameters_of(number) for number in distinct.tolist()])
            self._row_layout = _RowLayout(env_indices.copy(), env_of_row, place, int(counts.max()), stacked)
        return self._row_layout

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # No setting of this actor is scheduled.
        pass

    def flat(self) -> Array:
        return self.network.flat()

    def load_flat(self, flat: Array) -> None:
        self.network.load_flat(flat)
        self.restart()


@dataclass(frozen=True, slots=True)
class _RowLayout:
    """A dense [C, R] layout of N rows, one line per environment: row i is at `env[i]`, `place[i]`."""

    env_indices: Array
    """The environment of each row, [N]."""
    env: Array
    place: Array
    rows_per_env: int
    """The most rows of an environment, R."""
    parameters: Tensor
    """The parameters of each environment, [C, P]."""

    def scatter(self, rows: Array) -> Tensor:
        scattered = np.zeros((len(self.parameters), self.rows_per_env, *rows.shape[1:]), rows.dtype)
        scattered[self.env, self.place] = rows
        return torch.from_numpy(scattered)
