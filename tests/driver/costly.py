"""Cart-poles and pendulums whose agents have costs, for tests of limits on costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from pettingzoo.utils import BaseParallelWrapper

from marlflow.env.games import cartpole_team, pendulum_team
from tests.driver.two_groups import TwoGroups


class Costly(BaseParallelWrapper[str, Any, Any]):
    """Each agent costs `factor` per unit of its action's size at each env step: of 1, or the torque."""

    def __init__(self, env: Any, factor: float) -> None:
        super().__init__(env)
        self._factor = factor

    def step(self, actions: Any) -> Any:
        *result, infos = super().step(actions)
        costs = {agent: self._factor * float(np.abs(action).sum()) for agent, action in actions.items()}
        return *result, {agent: {**infos.get(agent, {}), "cost": cost} for agent, cost in costs.items()}


class CostlyGroups(TwoGroups):
    """Each agent costs 1 when it takes its second action."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        *result, _ = super().step(actions)
        return *result, {agent: {"cost": float(action)} for agent, action in actions.items()}


def carts(factor: float = 1.0, max_cycles: int = 50) -> Costly:
    return Costly(cartpole_team.parallel_env(max_cycles=max_cycles), factor)


def pendulums(factor: float = 1.0, max_cycles: int = 20) -> Costly:
    return Costly(pendulum_team.parallel_env(max_cycles=max_cycles), factor)
