"""Environments that exist twice: as a PettingZoo environment, and as one that steps many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from pettingzoo.utils import BaseParallelWrapper

from marlflow.env.batched.board_games import ConnectFour
from marlflow.env.batched.cartpole_team import BatchedCartPoleTeam
from marlflow.env.batched.versions import batched_maker
from marlflow.env.functional.own import batched_env
from marlflow.env.games import cartpole_team
from marlflow.env.make import make_environment
from tests.env import functional_games
from tests.sampling.workers import every_column_of_costs

QUARTERS = 0.25


@dataclass(frozen=True)
class Case:
    """Both versions; `mapping` is agent to policy, `remember` are the policies with a memory."""

    name: str
    make_env: Callable[[], Any]
    make_batched: Callable[[int], Any]
    mapping: Mapping[str, str]
    remember: tuple[str, ...] = ()
    with_state: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def cartpole(name: str, mapping: Mapping[str, str], remember: tuple[str, ...] = (), **arguments: Any) -> Case:
    return Case(
        name,
        partial(cartpole_team.parallel_env, **arguments),
        partial(BatchedCartPoleTeam, **arguments),
        mapping,
        remember,
    )


CASES = [
    cartpole("carts", {f"cart_{i}": "all" for i in range(4)}),
    cartpole(
        "carts of two policies, one with memory, truncated",
        {"cart_0": "b", "cart_1": "a", "cart_2": "b"},
        ("b",),
        num_agents=3,
        max_cycles=13,
    ),
    cartpole("carts without velocities", {"cart_0": "all"}, num_agents=1, velocities=False),
]


def of_versions(name: str, factory: str, arguments: Mapping[str, Any], mapping: Mapping[str, str], **more: Any) -> Case:
    """The PettingZoo environment `factory` and its batched version."""
    maker = batched_maker(factory, arguments, (), True)
    return Case(name, partial(make_environment, factory, arguments), maker, mapping, **more)


class CostlyCarts(BatchedCartPoleTeam):
    """Each cart costs a quarter, or half as much again, when it is pushed to the right."""

    info_keys = ("cost",)

    def step(self, actions):
        stood = self._stands.copy()
        made = super().step(actions)
        cost = QUARTERS * actions["cart"] * stood * (1 + 0.5 * (self._cycles[:, None] % 2))
        made.infos = {"cost": {"cart": cost}}
        return made


class CostlyTurns(ConnectFour):
    """A turn costs each player its own number, also the one whose turn it is not."""

    info_keys = ("cost",)

    def step(self, actions):
        made = super().step(actions)
        costs = {name: np.broadcast_to([1.0, 2.0], array.shape) for name, array in made.rewards.items()}
        made.infos = {"cost": costs}
        return made


class CostlyCartsAlone(BaseParallelWrapper):
    """CostlyCarts as a PettingZoo environment."""

    def reset(self, seed=None, options=None):
        self.cycles = 0
        return super().reset(seed=seed, options=options)

    def step(self, actions):
        *result, infos = super().step(actions)
        self.cycles += 1
        factor = QUARTERS * (1 + 0.5 * (self.cycles % 2))
        return *result, {agent: {**infos[agent], "cost": factor * action} for agent, action in actions.items()}


CASES += [
    Case(
        "carts with costs, of which one policy reads them",
        lambda: CostlyCartsAlone(cartpole_team.parallel_env(num_agents=3, max_cycles=13)),
        partial(CostlyCarts, num_agents=3, max_cycles=13),
        {"cart_0": "b", "cart_1": "a", "cart_2": "b"},
        settings={"columns": every_column_of_costs("b")},
    ),
    Case(
        "turns with costs",
        partial(CostlyTurns, 1),
        CostlyTurns,
        {"player_0": "a", "player_1": "b"},
        settings={"columns": every_column_of_costs("a", "b")},
    ),
    of_versions(
        "toll",
        "marlflow.env.games.toll.parallel_env",
        {"num_agents": 3},
        {"car_0": "all", "car_1": "all", "car_2": "other"},
        settings={"columns": every_column_of_costs("all", "other")},
    ),
    of_versions(
        "spread with memory and state",
        "mpe2.simple_spread_v3.parallel_env",
        {},
        {"agent_0": "a", "agent_1": "b", "agent_2": "a"},
        remember=("a",),
        with_state=("a",),
    ),
    of_versions(
        "tag, two groups, one policy not recorded",
        "mpe2.simple_tag_v3.parallel_env",
        {"continuous_actions": True, "max_cycles": 11},
        {"adversary_0": "hunt", "adversary_1": "hunt", "adversary_2": "lone", "agent_0": "flee"},
        settings={"recorded": ("hunt", "flee")},
    ),
    of_versions(
        "connect four, one policy",
        "pettingzoo.classic.connect_four_v3.env",
        {},
        {"player_0": "all", "player_1": "all"},
        remember=("all",),
    ),
    of_versions(
        "tic-tac-toe, two policies", "pettingzoo.classic.tictactoe_v3.env", {}, {"player_1": "a", "player_2": "b"}
    ),
    of_versions(
        "two steps, two groups, one policy, state",
        "marlflow.env.games.matrix_games.parallel_env",
        {"game": "two_step"},
        {"agent_0": "all", "agent_1": "all"},
        with_state=("all",),
    ),
    of_versions(
        "rock, paper, scissors, one-hot",
        "pettingzoo.classic.rps_v2.parallel_env",
        {},
        {"player_0": "a", "player_1": "b"},
    ),
]


def functional(
    name: str,
    alone: Callable[[], Any],
    make: type,
    mapping: Mapping[str, str],
    *,
    limit: int | None = None,
    **more: Any,
) -> Case:
    """A functional environment, and the same game as a plain PettingZoo environment."""
    return Case(name, alone, partial(batched_env, make=make, max_env_steps=limit), mapping, **more)


CASES += [
    functional(
        "functional walkers of two policies with masks, memory, costs and state, truncated",
        functional_games.WalkersAlone,
        functional_games.Walkers,
        {"walker_0": "a", "walker_1": "b", "walker_2": "a", "caller_0": "call"},
        limit=functional_games.MOST_STEPS,
        remember=("b",),
        with_state=("a", "b", "call"),
        settings={"columns": every_column_of_costs("a", "call")},
    ),
    functional(
        "functional players in turn, who end one by one",
        functional_games.HotPotatoAlone,
        functional_games.HotPotato,
        {"player_0": "a", "player_1": "b", "player_2": "a"},
        limit=functional_games.MOST_TURNS,
        remember=("b",),
    ),
]
