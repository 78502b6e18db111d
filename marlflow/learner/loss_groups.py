"""Groups of a module's parameters that learn by losses of their own, one after the other on each minibatch.

An actor, its critics and a temperature each have a loss during which the others stay fixed: a group's backward pass
reaches its own parameters alone, and the next group sees them already changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from marlflow.learner.flat_parameters import FlatParameters
from marlflow.learner.loss import LossFunction, LossTerms
from marlflow.learner.optimizer import Optimizer


@dataclass(frozen=True, slots=True)
class LossGroup:
    """The `parameters` of a module, a submodule's or adjacent ones, that learn by `loss`.

    `every`: on each that many-th minibatch only (Fujimoto et al., 2018, arXiv:1802.09477). `learning_rate` None is the
    learner's. A schedule of the learner's `learning_rate`, or of `<name>_learning_rate`, reaches it.
    """

    name: str
    parameters: Callable[[Any], Iterable[nn.Parameter]]
    loss: LossFunction
    learning_rate: float | None = None
    every: int = 1


class OptimizerGroup:
    """A LossGroup with its span of the flat vector and of the gradient, and the optimizer that steps it."""

    def __init__(
        self,
        group: LossGroup,
        module: Any,
        flat: FlatParameters,
        optimizer: Optimizer,
        learning_rate: float,
        max_norm: float,
    ) -> None:
        self.name, self.loss, self.every = group.name, group.loss, group.every
        own = [parameter for parameter in group.parameters(module) if parameter.requires_grad]
        span = flat.span(own)
        self._whole = span.stop - span.start == sum(p.numel() for p in flat.parameters if p.requires_grad)
        self._own, self.gradient = own, flat.gradient[span]
        self._follows = group.learning_rate is None
        rate = learning_rate if group.learning_rate is None else group.learning_rate
        self.optimizer = optimizer.over(flat.vector[span], self.gradient, rate, max_norm)

    def add_gradient(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of a minibatch; adds its gradient to `gradient`."""
        terms = self.loss(module, target_module, minibatch)
        if terms.total is not None:
            terms.total.backward(inputs=None if self._whole else self._own)
        return terms

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Sets the learning rate and `max_grad_norm`; passes all values on to the loss."""
        if self._follows and "learning_rate" in values:
            self.optimizer.learning_rate = values["learning_rate"]
        self.optimizer.learning_rate = values.get(f"{self.name}_learning_rate", self.optimizer.learning_rate)
        self.optimizer.max_norm = values.get("max_grad_norm", self.optimizer.max_norm)
        self.loss.set_schedule(values)

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state, under names that no other group uses."""
        return {self._key(name): tensor for name, tensor in self.optimizer.state().items()}

    def like(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """Template tensors (shape, dtype) for this group's entries of `state`."""
        return {self._key(name): tensor for name, tensor in self.optimizer.like(self._of(state)).items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores this group's entries of a learner's state."""
        self.optimizer.load_state(self._of(state))

    def _key(self, name: str) -> str:
        return f"optimizer/{self.name}/{name}"

    def _of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        prefix = self._key("")
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def loss_groups(losses: LossFunction | Sequence[LossGroup]) -> Sequence[LossGroup]:
    """The groups as given; one group of all parameters for a single loss."""
    return losses if isinstance(losses, Sequence) else (LossGroup("all", nn.Module.parameters, losses),)


def actors_of(module: Any, policies: Sequence[str]) -> dict[str, nn.Module]:
    """The actor of each policy of a learner: `module.actors`, a mapping; `module.actor` for one policy.

    Raises TypeError if `module` has not exactly these.
    """
    if (actors := getattr(module, "actors", None)) is None:
        (policy,) = policies
        return {policy: module.actor}
    if set(actors) != set(policies):
        raise TypeError(
            f"{type(module).__name__}.actors must have an actor for each of {', '.join(policies)}, and has "
            f"{', '.join(actors)}"
        )
    return {policy: actors[policy] for policy in policies}


def frozen_copy(module: Any, policies: Sequence[str], groups: Sequence[LossGroup]) -> tuple[Any, FlatParameters]:
    """A copy of `module` that does not learn, as a target, with its parameters in the same order."""
    frozen = copy.deepcopy(module)
    flat = FlatParameters(frozen, actors_of(frozen, policies), [list(group.parameters(frozen)) for group in groups])
    frozen.requires_grad_(False)
    return frozen, flat


def noise_width(groups: Sequence[LossGroup]) -> int:
    """The largest number of random numbers per row that one of the losses asks for."""
    return max(int(getattr(group.loss, "noise_per_row", 0)) for group in groups)


def norm_of_all(norms: Sequence[Tensor | float]) -> Tensor | float:
    """The norm of a gradient from the norms of its groups."""
    if len(norms) == 1:
        return norms[0]
    total: Tensor | float = sum(norm * norm for norm in norms)
    return torch.sqrt(total) if isinstance(total, Tensor) else total**0.5
