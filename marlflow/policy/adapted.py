"""A policy that adapts to the task of each copy of its environment, by gradient steps of its own parameters.

Between its learner's publishes it has for each copy parameters of its own, and acts for all copies in one pass. Finn et
al., "Model-agnostic meta-learning", 2017, https://arxiv.org/abs/1703.03400, algorithm 3, lines 5 to 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from marlflow.base.batch import Array
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Mode, WeightedActor
from marlflow.policy.categorical import CategoricalActor, log_prob_and_entropy, sample
from marlflow.policy.tensors import as_array, as_tensor, in_flat_order


@runtime_checkable
class AdaptingActor(WeightedActor, Protocol):
    """An actor that changes between the phases of a collect: `inner_steps` times, for each copy apart.

    actor.restart(); ...; actor.adapt(copies, rows); ...; actor.restart()
    """

    inner_steps: int
    taken: int
    """Inner steps since the last restart."""

    def restart(self) -> None:
        """Forgets all adaptation: every copy has what was published."""
        ...

    def adapt(self, copies: Array, rows: Mapping[str, Array]) -> None:
        """One inner step of each of `copies` [C] on its own rows, [C, R, ...]; the other copies stay as they are."""
        ...


class FlatNetwork:
    """A network of Discrete actions as a differentiable function of flat parameters, of several at once."""

    def __init__(self, network: CategoricalActor) -> None:
        self._network = network
        name_of = {parameter: name for name, parameter in network.named_parameters()}
        self._ordered = in_flat_order(network)
        self._names = [name_of[parameter] for parameter in self._ordered]
        self._sizes = [parameter.numel() for parameter in self._ordered]
        learns = [torch.full((parameter.numel(),), float(parameter.requires_grad)) for parameter in self._ordered]
        self.learns = torch.cat(learns)
        """1 for each number that gradients change, 0 for those that only stand beside, [P]."""

    def parameters(self) -> Tensor:
        """Those that the network has now, [P]; gradients flow back to them."""
        return torch.cat([parameter.reshape(-1) for parameter in self._ordered])

    def __call__(self, parameters: Tensor, obs: Tensor) -> Tensor:
        """Logits [T, N, A] of `obs` [T, N, ...], each of the T by parameters [T, P] of its own."""
        logits: Tensor = vmap(self._logits)(parameters, obs)
        return logits

    def _logits(self, parameters: Tensor, obs: Tensor) -> Tensor:
        parts = zip(self._names, parameters.split(self._sizes), self._ordered, strict=True)
        named = {name: part.view(like.shape) for name, part, like in parts}
        logits: Tensor = functional_call(self._network, named, (obs,))
        return logits

    def log_prob(self, parameters: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Log-probabilities [T, N] of the actions in `rows`, [T, N, ...]."""
        logits = self(parameters, rows["obs"])
        return log_prob_and_entropy(logits, rows["action"], rows.get("action_mask"))[0]


class Step(Protocol):
    """How parameters [T, P] change by rows [T, N, ...] of a task each."""

    def __call__(self, network: FlatNetwork, parameters: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """The parameters after it."""
        ...


class AdaptedActor:
    """Acts as `network` does, from `adapt` to `restart` with parameters of each copy's own, changed by `step`."""

    def __init__(self, network: CategoricalActor, inner_steps: int, step: Step) -> None:
        self.network, self.inner_steps, self._step = network, inner_steps, step
        self._function = FlatNetwork(network)
        self.restart()

    def restart(self) -> None:
        """Forgets all adaptation: every copy has what was published."""
        self.taken = 0
        self._adapted: dict[int, Tensor] = {}
        self._seating: _Seating | None = None

    def parameters_of(self, copy: int) -> Tensor:
        """What acts in a copy now, [P]."""
        adapted = self._adapted.get(copy)
        return self._function.parameters().detach() if adapted is None else adapted

    def adapt(self, copies: Array, rows: Mapping[str, Array]) -> None:
        """One inner step of each of `copies` [C] on its own rows, [C, R, ...]; the other copies stay as they are."""
        self.taken += 1
        self._seating = None
        if not len(copies):
            return
        before = torch.stack([self.parameters_of(copy) for copy in copies.tolist()]).requires_grad_()
        tensors = {name: as_tensor(column) for name, column in rows.items()}
        with torch.enable_grad():
            after = self._step(self._function, before, tensors).detach()
        self._adapted |= dict(zip(copies.tolist(), after, strict=True))

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        """Samples an action per row by the parameters of its copy, or takes the most likely one when greedy."""
        if not self._adapted:
            return self.network.act(obs, action_mask, memory, mode, generator)
        seating = self._seated(generator.copies)
        with torch.enable_grad():  # without it layers would leave torch for numpy, which knows no stacked parameters
            by_copy = self._function(seating.parameters, seating.spread(obs))
        logits = as_array(by_copy.detach())[seating.copy, seating.place]
        action, logp = sample(logits, action_mask, generator.uniform() if mode != "greedy" else None)
        return Acted(action, logp, memory)

    def _seated(self, copies: Array) -> _Seating:
        if self._seating is None or not np.array_equal(self._seating.copies, copies):
            numbers, copy, counts = np.unique(copies, return_inverse=True, return_counts=True)
            place = np.empty(len(copy), np.int64)
            place[np.argsort(copy, kind="stable")] = np.concatenate([np.arange(count) for count in counts])
            stacked = torch.stack([self.parameters_of(number) for number in numbers.tolist()])
            self._seating = _Seating(copies.copy(), copy, place, int(counts.max()), stacked)
        return self._seating

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of an adapted actor is scheduled."""

    def flat(self) -> Array:
        """A copy of all published parameters, in flat order, as one float32 vector."""
        return self.network.flat()

    def load_flat(self, flat: Array) -> None:
        """Replaces all published parameters by those of `flat`; raises WeightsMismatch if it has another size."""
        self.network.load_flat(flat)
        self.restart()


@dataclass(frozen=True, slots=True)
class _Seating:
    """The rows of `copies` [N] as those of each copy lie side by side: at `copy` [N] and `place` [N] of [C, R].

    `parameters` [C, P] are those of each copy.
    """

    copies: Array
    copy: Array
    place: Array
    most: int
    parameters: Tensor

    def spread(self, rows: Array) -> Tensor:
        """`rows` [N, ...] as [C, R, ...], with zeros between."""
        laid = np.zeros((len(self.parameters), self.most, *rows.shape[1:]), rows.dtype)
        laid[self.copy, self.place] = rows
        return torch.from_numpy(laid)
