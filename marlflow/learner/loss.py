"""The protocol of an algorithm's loss."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch import Tensor

Terms: TypeAlias = Mapping[str, Tensor] | Mapping[str, float]


class LossTerms(NamedTuple):
    """The result of a loss for one minibatch of N rows.

    `total` is the scalar to minimize. `terms` are detached scalars to report. `priorities` [N], detached, are for a
    prioritized replay. `columns` [N, ...], detached, are added to the minibatch for the loss groups after this one.
    """

    total: Tensor
    terms: Terms
    priorities: Tensor | None = None
    columns: Mapping[str, Tensor] = MappingProxyType({})


class LossFunction(Protocol):
    """The loss of an algorithm, used as `loss(module, target_module, minibatch).total.backward()`.

    The loss and its terms must be means over rows, because data-parallel learners share a minibatch. With an attribute
    `noise_per_row`, minibatches have a column `noise` of that many standard normal numbers per row.
    """

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """Compute the loss of `minibatch`, columns [N, ...]; `target_module` is None without a target network."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the scheduled coefficients that this loss has, and ignore other names."""
        ...


class Unscheduled:
    """Base class of losses without scheduled values."""

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Ignore all values."""


class ActorConstraint(Protocol):
    """Changes the losses of an actor's rows, as a limit on costs does."""

    def __call__(self, by_row: Tensor, module: Any, obs: Tensor, action: Tensor) -> Tensor:
        """Return the losses [N] of rows, given them, and the actions [N, ...] or the probabilities [N, A] at `obs`."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the scheduled values that it has, and ignore other names."""
        ...
