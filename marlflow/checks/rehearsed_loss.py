"""A loss of a user's own, with checks that a run would pay for in each minibatch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from marlflow.base.errors import InvalidInput
from marlflow.learner.loss import LossFunction, LossTerms

_OWN_TERM = "grad_norm"


class RehearsedLoss:
    """`loss`, which raises InvalidInput if it returns no loss terms, or if a part of the network could never learn."""

    def __init__(self, loss: LossFunction) -> None:
        self._loss = loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loss, name)

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """Return the loss of `minibatch`."""
        terms: Any = self._loss(module, target_module, minibatch)
        subject = f"the loss {getattr(self._loss, '__name__', type(self._loss).__name__)}"
        if not isinstance(terms, LossTerms):
            raise InvalidInput(
                [f"{subject} must return marlflow.LossTerms(total, terms), not a {type(terms).__name__}"]
            )
        total: Any = terms.total
        if not isinstance(total, Tensor) or total.dim():
            shape = f" {list(total.shape)}" if isinstance(total, Tensor) else ""
            raise InvalidInput(
                [f"{subject} must have a scalar tensor as its total, not a {type(total).__name__}{shape}"]
            )
        if _OWN_TERM in terms.terms:
            raise InvalidInput([f"{subject} has a term {_OWN_TERM!r}, as the learner has; rename it"])
        known = {id(one) for of in (module, target_module) if of is not None for one in of.parameters()}
        if lacking := [one for one in _parameters_of(total) if id(one) not in known]:
            which = f"an nn.Parameter {list(lacking[0].shape)} that its module does not have"
            raise InvalidInput(
                [
                    f"the network computes with {which}, so that it would never learn, and not be saved; keep layers "
                    "in nn.ModuleList or as attributes of their module, or call requires_grad_(False) on what is not "
                    "to learn"
                ]
            )
        return terms


def _parameters_of(total: Tensor) -> Iterator[nn.Parameter]:
    """Yield the parameters of whatever module that a tensor depends on, by the graph of autograd."""
    left, seen = [total.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), nn.Parameter):
            yield leaf
        left += [one for one, _ in node.next_functions]
