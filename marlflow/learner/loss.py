"""The interface of an algorithm's loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from torch import Tensor

Terms: TypeAlias = Mapping[str, Tensor] | Mapping[str, float]


class LossTerms(NamedTuple):
    """The result of a loss for one minibatch of N rows.

    `total` is the scalar to descend, or None if the loss has written the gradient of every parameter itself; `terms`
    are scalars to report, detached or already numbers; `priorities` [N], detached, go back to a replay that asked.
    """

    total: Tensor | None
    terms: Terms
    priorities: Tensor | None = None


class LossFunction(Protocol):
    """The loss of an algorithm: `loss(module, target_module, minibatch).total.backward()`.

    A loss that knows its gradient in closed form writes it into each parameter's `.grad` and returns no total. The loss
    and its terms are means over the rows: several learners may each have some rows of a minibatch. With an attribute
    `noise_per_row` it is given a column `noise` of so many standard normal numbers for each row.
    """

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of `minibatch`, columns [N, ...]; `target_module` is None for a learner without a target."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes the scheduled coefficients that this loss knows, and ignores the others."""
        ...
