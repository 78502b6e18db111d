"""Environments that exist twice: as a PettingZoo environment, and as one that steps many at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from marlflow.env import cartpole_team
from marlflow.env.batched.cartpole_team import BatchedCartPoleTeam


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
