"""The protocol of an algorithm's loss."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isfunction
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch import Tensor

Terms: TypeAlias = Mapping[str, Tensor] | Mapping[str, float]


class LossTerms(NamedTuple):
    """The result of a loss for one minibatch of N rows.

    `total` is the scalar to minimize, or None if the loss wrote the gradients itself. `terms` are detached scalars to
    report. `priorities` [N], detached, are for a prioritized replay. `columns` [N, ...], detached, are added to the
    minibatch for the loss groups after this one.
    """

    total: Tensor | None
    terms: Terms
    priorities: Tensor | None = None
    columns: Mapping[str, Tensor] = MappingProxyType({})


class LossFunction(Protocol):
    """The loss of an algorithm, used as `loss(module, target_module, minibatch).total.backward()`.

    The loss and its terms must be means over rows, because data-parallel learners share a minibatch. A loss may write
    its gradient to each `.grad` itself and return no total. With an attribute `noise_per_row`, minibatches have a
    column `noise` of that many standard normal numbers per row. A class may have a quicker way,
    `in_closed_form`, which is used for this exact class only.
    """

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """Compute the loss of `minibatch`, columns [N, ...]; `target_module` is None without a target network."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the scheduled coefficients that this loss has, and ignore other names."""
        ...


class ClosedForm(Protocol):
    """Computes the same loss as its class's `__call__`, without autograd."""

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms | None:
        """Write (not add) the gradient into each `.grad`, and return the terms; None if the network does not fit."""
        ...


def closed_form_of(loss: LossFunction) -> ClosedForm | None:
    """Return `loss.in_closed_form`, if the exact class of the loss defines it.

    What a class inherits was derived for the loss of its base class: a subclass, which may override any method, is
    computed by autograd. So is an object with a method that was replaced on it (`loss.of_actor = mine`).
    """
    kind = type(loss)
    defined: ClosedForm | None = vars(kind).get("in_closed_form")
    if defined is None or any(isfunction(getattr(kind, name, None)) for name in getattr(loss, "__dict__", ())):
        return None
    return getattr(loss, "in_closed_form")  # noqa: B009  no LossFunction must have it
