"""The temperature of Soft Actor-Critic: what a nat of entropy is worth, fixed or learned.

Critics, actor and temperature learn in this order: critics and actor use the temperature of before, and the temperature
learns from the entropy that the actor had before its step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from marlflow.learn.loss import LossTerms
from marlflow.losses.sac import temperature_loss


class Tempered(Protocol):
    """A module that may learn its temperature."""

    log_temperature: nn.Parameter


class Temperature:
    """A `fixed` number, which may be scheduled, or None: what the module has learned so far."""

    def __init__(self, fixed: float | None) -> None:
        self.fixed = None if fixed is None else torch.tensor(fixed)

    def of(self, module: Tempered) -> Tensor:
        """That of now, a scalar without gradient."""
        return module.log_temperature.detach().exp() if self.fixed is None else self.fixed

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes `temperature`, where it is fixed."""
        if self.fixed is not None and "temperature" in values:
            self.fixed = torch.tensor(values["temperature"])


class EntropySeen(Protocol):
    """The actor's loss, once it was asked: how far each row's entropy, as estimated, is below its target, [N]."""

    short_of_target: Tensor


class TemperatureLoss:
    """Raises the temperature while the entropy that the actor's loss saw last is below its target."""

    def __init__(self, actor_loss: EntropySeen) -> None:
        self._actor_loss = actor_loss

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of this loss is scheduled."""

    def __call__(self, module: Tempered, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of the minibatch that the actor has just learned from."""
        total = temperature_loss(module.log_temperature, self._actor_loss.short_of_target, 0.0).mean()
        return LossTerms(total, {"temperature": module.log_temperature.detach().exp()})
