"""Parts of a module that learn by losses of their own, one after the other on each minibatch.

An actor, its critics and a temperature have each a loss, in which the others stand still: a part's backward pass
reaches its own parameters alone, and the next part sees them already changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marlflow.learn.flat import FlatParameters
from marlflow.learn.loss import LossFunction, LossTerms
from marlflow.learn.optimiser import Optimiser


@dataclass(frozen=True, slots=True)
class Part:
    """The `parameters` of a module, a submodule's or neighbours', that learn by `loss`.

    `every`: on each that many-th minibatch only (Fujimoto et al., 2018, arXiv:1802.09477). `learning_rate` None is the
    learner's. A schedule of the learner's `learning_rate`, or of `<name>_learning_rate`, reaches it.
    """

    name: str
    parameters: Callable[[Any], Iterable[nn.Parameter]]
    loss: LossFunction
    learning_rate: float | None = None
    every: int = 1


class LearningPart:
    """A part at work: its stretch of the flat vector and of the gradient, and its optimiser."""

    def __init__(
        self, part: Part, module: Any, flat: FlatParameters, optimiser: Optimiser, learning_rate: float, max_norm: float
    ) -> None:
        self.name, self.loss, self.every = part.name, part.loss, part.every
        own = [parameter for parameter in part.parameters(module) if parameter.requires_grad]
        span = flat.span(own)
        self._whole = span.stop - span.start == sum(p.numel() for p in flat.parameters if p.requires_grad)
        self._own, self.gradient = own, flat.gradient[span]
        self._follows = part.learning_rate is None
        rate = learning_rate if part.learning_rate is None else part.learning_rate
        self.optimiser = optimiser.over(flat.vector[span], self.gradient, rate, max_norm)

    def find(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of a minibatch, its gradient added to `gradient`."""
        found = self.loss(module, target_module, minibatch)
        if found.total is not None:
            found.total.backward(inputs=None if self._whole else self._own)
        return found

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes its learning rate, `max_grad_norm`, and for its loss everything."""
        if self._follows and "learning_rate" in values:
            self.optimiser.learning_rate = values["learning_rate"]
        self.optimiser.learning_rate = values.get(f"{self.name}_learning_rate", self.optimiser.learning_rate)
        self.optimiser.max_norm = values.get("max_grad_norm", self.optimiser.max_norm)
        self.loss.set_schedule(values)

    def state(self) -> dict[str, Tensor]:
        """What its optimiser remembers, by names that no other part has."""
        return {self._key(name): tensor for name, tensor in self.optimiser.state().items()}

    def like(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """What of `state` is this part's should look like this."""
        return {self._key(name): tensor for name, tensor in self.optimiser.like(self._of(state)).items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state` gave, among other things."""
        self.optimiser.load_state(self._of(state))

    def _key(self, name: str) -> str:
        return f"optimiser/{self.name}/{name}"

    def _of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        prefix = self._key("")
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def parts_of(loss: LossFunction | Sequence[Part]) -> Sequence[Part]:
    """The parts: one with everything, where there is one loss for all parameters."""
    return loss if isinstance(loss, Sequence) else (Part("all", nn.Module.parameters, loss),)


def frozen_copy(module: Any, parts: Sequence[Part]) -> tuple[Any, FlatParameters]:
    """A copy of `module` that does not learn, as a target, with its parameters in the same order."""
    frozen = copy.deepcopy(module)
    flat = FlatParameters(frozen, frozen.actor, [list(part.parameters(frozen)) for part in parts])
    frozen.requires_grad_(False)
    return frozen, flat


def noise_width(parts: Sequence[Part]) -> int:
    """How many random numbers the losses need for each row."""
    return max(int(getattr(part.loss, "noise_per_row", 0)) for part in parts)


def norm_of_all(norms: Sequence[Tensor | float]) -> Tensor | float:
    """The norm of a gradient from those of its parts."""
    if len(norms) == 1:
        return norms[0]
    total: Tensor | float = sum(norm * norm for norm in norms)
    return torch.sqrt(total) if isinstance(total, Tensor) else total**0.5
