"""SAC's temperature (entropy coefficient), fixed or learned.

Critics and actor use the temperature from before the update; its own loss uses the entropy from before the actor's
step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from marlflow.learner.loss import LossTerms
from marlflow.losses.sac import temperature_loss


class Tempered(Protocol):
    """A module with a temperature."""

    log_temperature: nn.Parameter


class Temperature:
    """A `fixed` temperature, which may be scheduled, or None: the module's learned one."""

    def __init__(self, fixed: float | None) -> None:
        self.fixed = None if fixed is None else torch.tensor(fixed)

    def of(self, module: Tempered) -> Tensor:
        """Return the current temperature, a scalar without gradient."""
        return module.log_temperature.detach().exp() if self.fixed is None else self.fixed

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set `temperature`, if it is fixed."""
        if self.fixed is not None and "temperature" in values:
            self.fixed = torch.tensor(values["temperature"])


SHORT_OF_TARGET = "short_of_target"
"""The column in which an actor's loss gives how far each row's estimated entropy is below its target, [N]."""


class TemperatureLoss:
    """Raises the temperature while the actor's entropy is below its target, as its loss gives it in a column."""

    def __init__(self, column: str = SHORT_OF_TARGET) -> None:
        self._column = column

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # Nothing of this loss is scheduled.
        return

    def __call__(self, module: Tempered, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        total = temperature_loss(module.log_temperature, minibatch[self._column], 0.0).mean()
        return LossTerms(total, {"temperature": module.log_temperature.detach().exp()})
