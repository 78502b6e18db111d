"""Policies that never change and have one network act in one call per tick, and each as it would alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.env.games import cartpole_team
from marlflow.policy.actor import Actor
from marlflow.sampling import RolloutWorker, SamplerConfig
from marlflow.sampling.protocol import EvaluationRequest, Request
from tests.sampling.test_frozen_cohort import ACTORS, SPACES, assert_same_rows, counted_calls, dealt, scheduled, weights

FIXED, ENVS = 9, range(12)


def fixed(kind: str, number: int) -> Actor:
    """A policy that never changes."""
    actor: Any = ACTORS[kind]()
    actor.load_flat(weights(kind, number).flat)
    actor.set_schedule(scheduled(kind, number))
    return actor  # type: ignore[no-any-return]


def worker(kind: str, together: bool, writer: Any = None) -> RolloutWorker:
    # Named as the snapshots that `dealt` deals.
    policies = {f"main@{n}": partial(fixed, kind, n) for n in range(FIXED)}
    names = ["main", *policies]
    config = SamplerConfig(
        lambda: cartpole_team.parallel_env(num_agents=2),
        ENVS,
        None,
        3,
        recorded=["main"],
        spaces=dict.fromkeys(names, SPACES),
        cohorts=[{f"main@{n}": scheduled(kind, n) for n in range(FIXED)}] if together else (),
    )
    return RolloutWorker(config, {"main": ACTORS[kind], **policies}, writer=writer)


def request(kind: str, seed: int) -> Request:
    live = {"main": weights(kind, 100)}
    return Request(weights=live, schedules={"main": scheduled(kind, 1)}, matchups=dealt(seed, ENVS, FIXED))


@pytest.mark.parametrize("kind", ACTORS)
def test_rows_against_them_are_those_against_each_alone(kind: str) -> None:
    alone, together = worker(kind, False), worker(kind, True)
    for seed, ticks in enumerate((30, 1, 64)):
        expected, found = (of.collect(ticks, request(kind, seed)) for of in (alone, together))
        assert found[0].episodes == expected[0].episodes
        assert found[0].agent_steps == expected[0].agent_steps
        assert set(found[1]) == {"main"}
        assert_same_rows(found, expected)
    seats = [{"cart_0": f"main@{n % FIXED}", "cart_1": f"main@{n * 5 % FIXED}"} for n in range(12)]
    for mode in ("greedy", "sampled", {"main@0": "greedy", "main@3": "sampled"}):
        games: Any = EvaluationRequest(range(12), matchups=seats, mode=mode)
        assert together.evaluate(games).episodes == alone.evaluate(games).episodes
    # Their training has not been disturbed by that, nor their memories.
    assert_same_rows(together.collect(20, request(kind, 9)), alone.collect(20, request(kind, 9)))


def test_a_tick_costs_one_call_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = counted_calls(monkeypatch)
    worker("mlp", True).collect(9, request("mlp", 0))
    assert len(groups) == 9
    assert min(groups) > 3


@pytest.mark.parametrize("kind", ACTORS)
def test_running_episodes_against_them_are_resumed(kind: str) -> None:
    whole, parts = worker(kind, True), worker(kind, True)
    whole.collect(13, request(kind, 0))
    parts.collect(13, request(kind, 0))
    resumed = worker(kind, True)
    assert resumed.load_state(from_bytes(to_bytes(parts.state())), 10**9).episodes_abandoned == 0
    for ticks in (6, 30):
        one, other = (of.collect(ticks, request(kind, ticks)) for of in (whole, resumed))
        assert one[0].episodes == other[0].episodes
        assert_same_rows(one, other)


def test_those_that_a_dataset_records_act_alone() -> None:
    class Rows:
        policies, folder = ("main@1", "main@2", "main@3"), ""

        def __init__(self) -> None:
            self.rows, self.finished = 0, {}

        def write(self, batches: Any, env_steps: int) -> None:
            self.rows += sum(batches[name].rows for name in self.policies)

        def write_full(self) -> None:
            pass

        finish = write_full

    found: list[Any] = []
    for together in (False, True):
        rows = Rows()
        receipt, _ = worker("mlp", together, rows).collect(80, request("mlp", 0))
        found.append((rows.rows, receipt.episodes))
    assert found[0] == found[1]
    assert found[0][0] > 0


def test_a_cohort_holds_the_weights_of_each() -> None:
    playing = worker("mlp", True)
    (cohort,) = set(playing._table._cohort_of.values())
    for number in range(FIXED):
        slot = cohort.members.slot(f"main@{number}")
        found = np.concatenate([view.numpy().ravel() for view in cohort.members.actors._views[slot]])
        np.testing.assert_array_equal(found, weights("mlp", number).flat)
    assert tuple(playing._table) == ("main", *(f"main@{n}" for n in range(FIXED)))
