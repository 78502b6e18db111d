"""Loss groups: parts of a module with losses, optimizers and learning rates of their own.

Used for an actor, its critics and a temperature. They are stepped one after the other on each minibatch: each group's
loss sees the groups before it already updated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from marlflow.base.errors import InvalidInput
from marlflow.learner.extra_losses import AddedLoss
from marlflow.learner.flat_parameters import FlatParameters
from marlflow.learner.loss import LossFunction, LossTerms, Terms
from marlflow.learner.optimizer import Optimizer

WHOLE: Final = "all"
"""The name of the loss group of an algorithm that has one loss for the whole network."""


@dataclass(frozen=True, slots=True)
class LossGroup:
    """The `parameters` of a module (a submodule's, or adjacent ones) that are trained by `loss`.

    Stepped on each `every`-th minibatch (delayed updates; Fujimoto et al., 2018, arXiv:1802.09477). `learning_rate`
    None means the learner's. A schedule of `<name>_learning_rate` sets it; of a group `actor/<policy>`, one of
    `actor_learning_rate`. A group with a `policy` is not stepped in updates of one other policy (see
    `TorchLearner.update`).
    """

    name: str
    parameters: Callable[[Any], Iterable[nn.Parameter]]
    loss: LossFunction
    learning_rate: float | None = None
    every: int = 1
    policy: str | None = None

    def beside(self, groups: Sequence[LossGroup], rest: str = "rest") -> list[LossGroup]:
        """Return `groups`, without this one's parameters, and this one; a group of the whole network becomes `rest`."""

        def others(group: LossGroup) -> Callable[[Any], list[nn.Parameter]]:
            def parameters(module: Any) -> list[nn.Parameter]:
                own = set(self.parameters(module))
                return [parameter for parameter in group.parameters(module) if parameter not in own]

            return parameters

        names = [rest if group.name == WHOLE else group.name for group in groups]
        kept = [replace(group, name=name, parameters=others(group)) for name, group in zip(names, groups, strict=True)]
        return [*kept, self]

    def takes_part(self, policy: str | None) -> bool:
        """Return whether it is stepped in an update of `policy` alone; None is an update of all."""
        return policy is None or self.policy in (None, policy)


class OptimizerGroup:
    """A LossGroup with its extra losses, its span of the flat gradient and its optimizer."""

    def __init__(
        self,
        group: LossGroup,
        module: Any,
        flat: FlatParameters,
        optimizer: Optimizer,
        learning_rate: float,
        max_grad_norm: float,
        extra_losses: Sequence[AddedLoss] = (),
    ) -> None:
        self.name, self.loss, self.every = group.name, group.loss, group.every
        self.extra_losses = extra_losses
        self.takes_part = group.takes_part
        self._parameters = [parameter for parameter in group.parameters(module) if parameter.requires_grad]
        self.span = span = flat.span(self._parameters)
        self._is_whole = span.stop - span.start == sum(p.numel() for p in flat.parameters if p.requires_grad)
        self.gradient = flat.gradient[span]
        self._has_learners_rate = group.learning_rate is None
        rate = learning_rate if group.learning_rate is None else group.learning_rate
        self.optimizer = optimizer.over(flat.vector[span], self.gradient, rate, max_grad_norm)

    def add_gradient(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """Compute the loss of a minibatch and the extra losses, and add their gradients to `gradient`, which is 0."""
        # Without `inputs`, a backward pass would also add to the gradients of other groups.
        inputs = None if self._is_whole else self._parameters
        terms = self.loss(module, target_module, minibatch)
        terms.total.backward(inputs=inputs)
        if not self.extra_losses:
            return terms
        extra = {loss.term: loss.add_gradient(module, minibatch, inputs) for loss in self.extra_losses}
        return terms._replace(terms=joined_terms(terms.terms, extra))

    def total_loss(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """Return the loss and the extra losses, added up, without a gradient."""
        terms = self.loss(module, target_module, minibatch)
        for extra in self.extra_losses:
            value, total = extra.value(module, minibatch), terms.total
            total = total if extra.coefficient is None else total + extra.coefficient * value
            terms = terms._replace(total=total, terms=joined_terms(terms.terms, {extra.term: value.detach()}))
        return terms

    def set_coefficients(self, values: Mapping[str, float]) -> None:
        """Set the scheduled coefficients of the loss and of the extra losses."""
        self.loss.set_schedule(values)
        for extra in self.extra_losses:
            extra.set_schedule(values)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the learning rate and `max_grad_norm`, and pass all values on to the loss."""
        if self._has_learners_rate and "learning_rate" in values:
            self.optimizer.learning_rate = values["learning_rate"]
        own_rate = f"{self.name.partition('/')[0]}_learning_rate"
        self.optimizer.learning_rate = values.get(own_rate, self.optimizer.learning_rate)
        self.optimizer.max_grad_norm = values.get("max_grad_norm", self.optimizer.max_grad_norm)
        self.set_coefficients(values)

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's state, with the group's name in each key."""
        return {self._key(name): tensor for name, tensor in self.optimizer.state().items()}

    def like(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return template tensors (shape, dtype) for this group's entries of `state`."""
        return {self._key(name): tensor for name, tensor in self.optimizer.like(self._of(state)).items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the optimizer from its entries of a learner's state."""
        self.optimizer.load_state(self._of(state))

    def _key(self, name: str) -> str:
        return f"optimizer/{self.name}/{name}"

    def _of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        prefix = self._key("")
        return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def as_groups(losses: LossFunction | Sequence[LossGroup]) -> Sequence[LossGroup]:
    """Return the given groups, or one group of all parameters for a single loss."""
    return losses if isinstance(losses, Sequence) else (LossGroup(WHOLE, nn.Module.parameters, losses),)


def joined_terms(terms: Terms, others: Terms) -> Terms:
    """Return both; raises InvalidInput if they have a name in common, because reports would have only one."""
    if clash := sorted(terms.keys() & others.keys()):
        raise InvalidInput([f"two losses of a learner report the term {clash[0]!r}; rename one of them"])
    joined: dict[str, Any] = {**terms, **others}
    return joined


def actors_of(module: Any, policies: Sequence[str]) -> dict[str, nn.Module]:
    """Return the actor of each policy: the mapping `module.actors`, or `module.actor` for one policy.

    Raises TypeError if the keys of `module.actors` are not `policies`.
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
    """Return a frozen copy of `module`, as target network, and its flat parameters."""
    frozen = copy.deepcopy(module)
    flat = FlatParameters(frozen, actors_of(frozen, policies), [list(group.parameters(frozen)) for group in groups])
    # Only now, because the order of flat parameters depends on requires_grad.
    frozen.requires_grad_(False)
    return frozen, flat


def noise_width(groups: Sequence[LossGroup] | Sequence[OptimizerGroup]) -> int:
    """Return the largest `noise_per_row` of the losses."""
    return max(int(getattr(group.loss, "noise_per_row", 0)) for group in groups)


def total_norm(norms: Sequence[Tensor | float]) -> Tensor | float:
    """Combine the gradient norms of groups."""
    if len(norms) == 1:
        return norms[0]
    total: Tensor | float = sum(norm * norm for norm in norms)
    return torch.sqrt(total) if isinstance(total, Tensor) else total**0.5
