"""Limits on costs by Lagrange multipliers: what PPO, MAPPO and SAC have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from marlflow.base.problems import Problem
from marlflow.base.schedules import ScheduledFloat
from marlflow.learner.loss import LossTerms
from marlflow.losses.ppo import value_loss

COST_CRITIC = "cost_critic"


def cost_limit_of(algorithm: object) -> ScheduledFloat | None:
    """Return the limit of an agent's mean cost per episode; None if costs are not read."""
    limit: ScheduledFloat | None = getattr(algorithm, "cost_limit", None)
    return limit


def initial_multiplier(algorithm: object) -> float | None:
    """Return the multiplier to begin with; None if costs are not read."""
    return None if cost_limit_of(algorithm) is None else float(getattr(algorithm, "initial_multiplier", 0.0))


def cost_limit_problems(name: str, algorithm: object, learns_on_workers: bool) -> Iterator[Problem]:
    """Yield why an algorithm that has the setting cannot keep costs below a limit."""
    if learns_on_workers and cost_limit_of(algorithm) is not None:
        reason = "no learner of it sees the costs of all workers"
        yield Problem("cannot have a cost_limit", name, reason, "use ppo, mappo or sac, or set cost_limit=null")


class CostValueLoss:
    """Half the squared error of a cost critic to its value targets."""

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # Nothing of this loss is scheduled.
        return

    def __call__(self, module: Any, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        critic, target = module.cost_critic, minibatch["cost_value_target"]
        value = critic(minibatch.get("central", minibatch["obs"]))
        total = critic.value_error(value_loss(value, target)).mean()
        return LossTerms(total, {"cost_value": total.detach()})


def without_cost_critic(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of all but the cost critic."""
    for name, part in module.named_children():
        if name != COST_CRITIC:
            yield from part.parameters()


def cost_seed(seed: int) -> int:
    """Return a seed for the cost critic, apart from the generator that the other networks are drawn from."""
    return int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))
