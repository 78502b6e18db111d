"""Extra losses as users write them: a function, a class, and losses that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import marlflow as mf


def entropy_floor(module: Any, minibatch: Mapping[str, Tensor], floor: float = 0.6) -> Tensor:
    """How far the policy's entropy is below `floor`, for Discrete actions."""
    logits = module.actor(minibatch["obs"])
    _, entropy = module.actor.log_prob_and_entropy(logits, minibatch["action"], minibatch.get("action_mask"))
    return torch.relu(floor - entropy).mean()


@dataclass(frozen=True)
class Weight:
    """The squared size of the actors' parameters; of any network."""

    coefficient: mf.ScheduledFloat = 0.1
    group: str | None = None

    def __call__(self, module: Any, minibatch: Mapping[str, Tensor]) -> Tensor:
        actors = module.actors.values() if hasattr(module, "actors") else [module.actor]
        trained = [one for actor in actors for one in actor.parameters() if one.requires_grad]
        return sum((parameter.square().sum() for parameter in trained), torch.zeros(()))


class Head(torch.nn.Linear):
    """A module with parameters that no optimizer would train."""

    def __init__(self) -> None:
        super().__init__(2, 2)

    def forward(self, module: Any, minibatch: Any) -> Tensor:
        return torch.ones(2) @ self.weight @ torch.ones(2)
