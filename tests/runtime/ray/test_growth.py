"""A run does not outgrow its machine: more workers than CPUs, a learner that is slow, and memory that is limited."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from gymnasium.spaces import Box
from ray.util.placement_group import placement_group, remove_placement_group
from torch import Tensor

import marlflow as mf
from marlflow.algorithms.dqn import DQNLoss
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.checks.commands import runtime_of
from marlflow.checks.validation import ready
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.ray import RayRuntime, cluster
from tests.conftest import RAY_CPUS
from tests.runtime.driven_runs import driven
from tests.runtime.small_runs import policies, small_run

pytestmark = pytest.mark.slow

ROW_FLOATS = 2_048
ROW_BYTES = 4 * ROW_FLOATS
WORKERS, ROUNDS = 6, 20
QUEUE_FRAGMENTS = 2 * WORKERS
"""What may wait for a plan: two rounds."""
HELD_BY_CONCAT = QUEUE_FRAGMENTS + 1
"""Items at Concat: a full queue, and a batch that waits for room. A fragment completes at most one batch, and the
executor gives Concat no further fragment while that batch is undelivered."""
ON_THE_WAY = QUEUE_FRAGMENTS + 3 * WORKERS
"""Fragments between workers and replay: a full queue, and three batches of one round each. One waits at Concat, one is
on the edge to the replay (capacity 1), and one is being inserted. This is measured when a round is requested: then the
round before has left the shared stages."""
SETTLED_LOOKS = 5
"""For so many looks in a row, half a second apart, memory has to stay as it is to have settled."""


class WideCarts(CartPoleTeam):
    """Observations of 8 KiB, so that rows are worth a place in the object store."""

    def observation_space(self, agent: str) -> Box:
        return Box(-np.inf, np.inf, (ROW_FLOATS,), np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = super().reset(seed, options)
        return _wide(observations), infos

    def step(self, actions: dict[str, int]) -> Any:
        observations, *rest = super().step(actions)
        return _wide(observations), *rest


def _wide(observations: Mapping[str, Array]) -> dict[str, Array]:
    return {agent: np.resize(seen, ROW_FLOATS) for agent, seen in observations.items()}


class SlowLoss(DQNLoss):
    """Takes a hundred times as long."""

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        time.sleep(0.01)
        return super().__call__(module, target_module, minibatch)


@dataclass(frozen=True)
class SlowDQN(mf.DQN):
    """DQN that cannot keep up with its workers."""

    def losses(self, spaces: Spaces) -> SlowLoss:
        return SlowLoss()


@contextmanager
def cpus_left(count: int) -> Iterator[None]:
    """All but this many of the cluster's CPUs are reserved elsewhere."""
    others = placement_group([{"CPU": RAY_CPUS - count}])
    ray.get(others.ready())
    try:
        yield
    finally:
        remove_placement_group(others)


def test_numbers_of_free_cpus_that_are_too_old_only_cost_an_attempt(
    ray_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "PLACING_TIMEOUT_S", 2.0)
    spec = ready(small_run(rollouts=mf.Rollouts(num_workers=3, fragment_env_steps=20))).spec
    with cpus_left(2):
        # As before the others came, and then as it is.
        old = [[{"CPU": float(RAY_CPUS)}]]
        now = cluster._free_resources
        monkeypatch.setattr(cluster, "_free_resources", lambda requests: old.pop() if old else now(requests))
        placed = cluster.reserve(spec)
        shares = [options["num_cpus"] for options in placed.options.values()]
        remove_placement_group(placed.group)
    assert not old
    assert min(shares) > 0
    # Actors of an earlier run may hold a little of the two still.
    assert 1.5 < sum(shares) <= 2


@dataclass(frozen=True)
class Grown:
    """Observations of a run: the workers that delivered in each round, and the bytes in transit before each round."""

    workers: list[set[int]]
    behind_rows: list[int]
    items_at_concat: list[int]
    stored_bytes: list[int]
    stored_at_the_end_bytes: int
    largest_rows: int
    faults: int


@pytest.fixture(scope="module")
def grown(ray_session: None) -> Grown:
    """Six workers on two CPUs, and a learner that is slower than they are."""
    slow = SlowDQN(
        batch_agent_steps=16, train_every_agent_steps=20, learning_starts_agent_steps=0, replay_agent_steps=1_000
    )
    experiment = small_run(
        env=mf.Env(WideCarts, num_envs=WORKERS),
        policies=policies(prey=slow),
        mapping=(mf.Rule("*", "prey"),),
        rollouts=mf.Rollouts(num_workers=WORKERS, fragment_env_steps=20),
    )
    with cpus_left(2), driven(experiment, RayRuntime()) as run:
        seen = Grown([], [], [], [], 0, 0, 0)
        before = run.runtime.object_store_bytes()
        assert before is not None
        delivered: list[int] = []

        def look() -> None:
            replay = run.parts.replays["prey"]
            for number, round in enumerate(run.rounds[len(seen.workers) :], len(seen.workers)):
                seen.workers.append({receipt.worker for receipt in round.receipts})
                delivered.extend(fragment.rows for fragment in round.fragments)
                run.rounds[number] = replace(round, fragments=())  # an owner of a fragment owns its rows
            seen.behind_rows.append(sum(delivered) - replay.numbered)
            seen.items_at_concat.append(run.executor.held()["prey/Concat"])
            seen.stored_bytes.append((run.runtime.object_store_bytes() or 0) - before)

        run.play(ROUNDS, dict.fromkeys(range(ROUNDS), look))
        run.rounds.clear()
        left = _settled_store(run.runtime) - before
        return replace(seen, stored_at_the_end_bytes=left, largest_rows=max(delivered), faults=len(run.faults))


def _settled_store(runtime: Runtime) -> int:
    """What the store holds once it holds no less: Ray frees what nobody refers to each second."""
    clock, found = threading.Event(), [runtime.object_store_bytes() or 0]
    while len(found) < SETTLED_LOOKS or found[-1] < found[-SETTLED_LOOKS]:
        clock.wait(0.5)
        found.append(runtime.object_store_bytes() or 0)
    return found[-1]


def test_there_may_be_more_workers_than_cpus(grown: Grown) -> None:
    assert grown.workers == [set(range(WORKERS))] * (ROUNDS - 1)
    assert grown.faults == 0


def test_a_slow_learner_makes_workers_wait_and_nothing_piles_up(grown: Grown) -> None:
    assert max(grown.items_at_concat) <= HELD_BY_CONCAT
    assert WORKERS * grown.largest_rows < max(grown.behind_rows) <= ON_THE_WAY * grown.largest_rows


def test_memory_is_given_back_when_rows_have_arrived(grown: Grown) -> None:
    fragment_bytes = grown.largest_rows * ROW_BYTES
    assert max(grown.stored_bytes) > WORKERS * fragment_bytes / 2, "rows did not go through the object store"
    assert grown.stored_at_the_end_bytes < fragment_bytes


def test_what_a_ray_of_its_own_is_started_with_is_what_the_experiment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("marlflow.runtime.ray.RayRuntime", lambda *arguments, **named: asked.append((arguments, named)))
    runtime_of(replace(small_run(), runtime=mf.RuntimeConfig("ray", None, 123, "10.0.0.7")))
    assert asked == [((None,), {"object_store_bytes": 123, "node_ip_address": "10.0.0.7", "dashboard": False})]


def test_inline_nothing_leaves_the_process(tmp_path: Path) -> None:
    assert mf.train(small_run(env_steps=160), tmp_path).metrics["object_store"] == {"bytes": None}
