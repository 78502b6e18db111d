"""Costs are credited to rows by the rules of rewards, whatever the environment does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo import ParallelEnv

from marlflow.base.errors import EnvironmentFailed
from marlflow.env.wrappers.shipped import black_death
from tests.sampling.built_environments import BuiltParallel
from tests.sampling.row_actors import Policy
from tests.sampling.row_comparison import SEED, built_seats, collects
from tests.sampling.scripts import scripts
from tests.sampling.workers import costs_of, rollout_worker

TIMES = 4.0
"""Costs are rewards times this, a power of two: all sums of costs are sums of rewards times this, bit for bit."""


class Costly(BuiltParallel):
    """Gives each agent TIMES its reward as a cost, and counts what it issued."""

    issued: ClassVar[dict[int, float]] = {}

    def step(self, actions: Any) -> Any:
        observations, rewards, terminations, truncations, infos = super().step(actions)
        costs = {agent: TIMES * float(np.asarray(reward).item()) for agent, reward in rewards.items()}
        # By environment, since the replay of an episode would issue costs again.
        Costly.issued[id(self)] = Costly.issued.get(id(self), 0.0) + sum(costs.values())
        infos = {agent: {**(infos.get(agent) or {}), "cost": costs[agent]} for agent in rewards} | {
            agent: info for agent, info in infos.items() if agent not in rewards
        }
        return observations, rewards, terminations, truncations, infos


def worker_with_costs(make_env: Any, mapping: Any, actors: Any, env_indices: Any = (0, 1), **settings: Any) -> Any:
    """A worker of policies that all read costs, unless `columns` says which."""
    return rollout_worker(make_env, env_indices, mapping, actors, SEED, **{"columns": costs_of(*actors), **settings})


@given(st.data(), scripts(), collects)
def test_costs_go_where_rewards_go(data, script, collects):
    script = replace(script, pay="quarters")
    seats = data.draw(built_seats(script, plain=True))
    actors = {name: policy.actor() for name, policy in seats.policies.items()}
    Costly.issued = {}
    worker = worker_with_costs(lambda: Costly(script), seats.matchup(0, 0), actors)
    credited = finished = 0.0
    for collect in collects:
        receipt, batches = worker.collect(collect.ticks)
        for name, batch in batches.items():
            found = receipt.policies[name]
            assert batch["cost"].dtype == np.float64
            assert batch["cost"].tolist() == (TIMES * batch["reward"]).tolist()
            assert found.infos_unattributed["cost"] == TIMES * found.reward_unattributed
            credited += batch["cost"].sum() + found.infos_unattributed["cost"]
        for episode in receipt.episodes:
            # Agents may have a cost without having appeared, as they may have a reward.
            assert episode.infos["cost"] == {agent: TIMES * total for agent, total in episode.returns.items()}
            finished += sum(episode.infos["cost"].values())
    still_open = worker.state()["tables"]["open"]["cost"].sum() if "undeclared" not in script.habits else None
    worker.close()
    if still_open is not None:
        assert credited + still_open == sum(Costly.issued.values())


class Given(ParallelEnv[str, Any, Any]):
    """One agent that plays `costs`, an info each, and then terminates; another one always costs 1."""

    metadata = {"name": "given"}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, infos: list[dict[str, Any]]) -> None:
        self.infos = infos
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.at = ["a", "b"], 0
        # Costs at reset() belong to no row, because no action was taken.
        return dict.fromkeys(self.agents, np.zeros(1, np.float32)), {agent: {"cost": 100.0} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        living, info = self.agents, self.infos[self.at]
        self.at += 1
        over = self.at == len(self.infos)
        self.agents = [] if over else living
        infos = {"a": info, "b": {"cost": 1.0}}
        seen, zero = dict.fromkeys(living, np.zeros(1, np.float32)), dict.fromkeys(living, 0.0)
        return seen, zero, dict.fromkeys(living, over), dict.fromkeys(living, False), infos


def collected(infos: list[dict[str, Any]], ticks: int, made: Any = Given, **settings: Any) -> Any:
    actors = {name: Policy(spaces.Discrete(2)).actor() for name in ("one", "two")}
    worker = worker_with_costs(lambda: made(infos), {"a": "one", "b": "two"}, actors, (0,), **settings)
    return worker.collect(ticks)


def test_costs_of_reset_are_left_out_and_costs_may_be_of_any_numeric_type() -> None:
    receipt, batches = collected([{"cost": 1}, {"cost": np.float32(0.5)}, {"cost": True}, {"cost": np.array([2.0])}], 4)
    assert batches["one"]["cost"].tolist() == [1.0, 0.5, 1.0, 2.0]
    (episode,) = receipt.episodes
    assert episode.infos["cost"] == {"a": 4.5, "b": 4.0}


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({}, r"gave no info\['cost'\] for an agent that acted, and its policy has a column 'cost'; give 0.0"),
        ({"cost": float("nan")}, r"info\['cost'\] is nan, not a finite number"),
        ({"cost": float("inf")}, r"info\['cost'\] is inf, not a finite number"),
        ({"cost": "1.0"}, r"info\['cost'\] is '1.0', not a finite number"),
        ({"cost": [1.0, 2.0]}, r"info\['cost'\] is \[1.0, 2.0\], not a finite number"),
        ({"cost": None}, r"gave no info\['cost'\]"),
    ],
)
def test_a_cost_that_is_no_number_is_an_error_of_the_environment(info: dict[str, Any], reason: str) -> None:
    with pytest.raises(EnvironmentFailed, match=rf"agent 'a'.*{reason}"):
        collected([{"cost": 0.0}, info, {"cost": 0.0}], 3)
    # It is not read if its policy has no limit.
    receipt, batches = collected([{"cost": 0.0}, info, {"cost": 0.0}], 3, columns=costs_of("two"))
    assert "cost" not in batches["one"].columns
    assert batches["two"]["cost"].tolist() == [1.0] * 3
    assert receipt.episodes[0].infos["cost"] == {"b": 3.0}


def test_a_broken_episode_loses_its_costs_and_the_others_keep_theirs() -> None:
    infos = [{"cost": 1.0}, {"cost": 2.0}, {"cost": float("nan")}]
    receipt, batches = collected(infos, 4, tolerated_faults=9)
    assert [fault.rows_lost for fault in receipt.faults] == [6]
    assert batches["one"]["cost"].tolist() == [1.0]
    assert receipt.policies["one"].infos_unattributed["cost"] == 0.0


def test_costs_of_the_dead_belong_to_no_row() -> None:
    class Afterwards(Given):
        def step(self, actions: Any) -> Any:
            *result, infos = super().step(actions)
            if self.at == 2:
                # `a` ends; its later costs come without a reward.
                self.agents, result[2]["a"] = ["b"], True
            if self.at > 2 and self.agents:
                infos["a"] = {"cost": 7.0}
            return *result, infos

    receipt, batches = collected([{"cost": 1.0}] * 4, 4, Afterwards)
    assert batches["one"]["cost"].tolist() == [1.0, 1.0]
    assert receipt.policies["one"].infos_unattributed["cost"] == 7.0 + 1.0
    assert receipt.episodes[0].infos["cost"] == {"a": 10.0, "b": 4.0}


def test_without_a_limit_nothing_is_read() -> None:
    receipt, batches = collected([{"cost": float("nan")}] * 2, 2, columns=costs_of())
    assert "cost" not in batches["one"].columns
    assert receipt.episodes[0].infos == {}


def test_agents_that_black_death_keeps_cost_nothing() -> None:
    class Early(Given):
        def step(self, actions: Any) -> Any:
            *result, infos = super().step(actions)
            if self.at == 1:
                self.agents, result[2]["a"] = ["b"], True
            return *result, {agent: info for agent, info in infos.items() if agent in result[0]}

    receipt, batches = collected([{"cost": 3.0}] * 3, 3, lambda infos: black_death(Early(infos)))
    assert batches["one"]["cost"].tolist() == [3.0, 0.0, 0.0]
    assert receipt.episodes[0].infos["cost"] == {"a": 3.0, "b": 3.0}
