"""Records over Ray: the same files as inline, and each recorded row delivered once although a worker is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import ray

import marlflow as mf
from marlflow.offline.dataset import find_dataset
from marlflow.offline.environment import recorded_environment
from marlflow.runtime.ray import RayRuntime
from tests.offline.batches import assert_same
from tests.runtime.driven_runs import driven
from tests.runtime.small_runs import policies, small_run

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.slow]

ROUNDS = 4


def expert(runtime: str) -> mf.Experiment:
    algorithm = mf.PPO(batch_agent_steps=200, epochs=1, minibatch_agent_steps=100)
    made = small_run(env_steps=80 * ROUNDS, policies=policies(carts=algorithm), mapping=[mf.Rule("*", "carts")])
    return replace(made, runtime=replace(made.runtime, name=runtime), record=mf.Record())


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("inline")
    mf.train(expert("inline"), where)
    return where / "record"


def fragments(folder: Path) -> list[mf.Batch]:
    found = find_dataset(folder, "carts")
    return [found.read(fragment) for fragment in found.fragments]


def test_what_is_recorded_over_ray_is_what_is_recorded_inline(records: Path, tmp_path: Path) -> None:
    mf.train(expert("ray"), tmp_path)
    for one, other in zip(fragments(tmp_path / "record"), fragments(records), strict=True):
        assert_same(one, other)


def decisions(batches: list[mf.Batch]) -> Counter[tuple[int, ...]]:
    """Which decisions these are the rows of: environment, episode, agent, and number in the episode."""
    names = ("env", "episode", "agent", "t_agent")
    return Counter(row for batch in batches for row in zip(*(batch[name].tolist() for name in names), strict=True))


def test_a_worker_that_dies_hands_out_nothing_twice_and_leaves_nothing_out(records: Path) -> None:
    algorithm = mf.BC(batch_agent_steps=200, minibatch_agent_steps=100)
    env = mf.Env(recorded_environment, {"folder": str(records)}, num_envs=4)
    offline = small_run("ray", env=env, policies=policies(carts=algorithm), mapping=[mf.Rule("*", "carts")])
    with driven(offline, RayRuntime()) as run:
        workers = run.parts.workers.all
        run.play(ROUNDS + 4, before={2: lambda: ray.kill(workers[0].actor)})
        delivered = [batch for round in run.rounds for part in round.fragments for batch in ray.get([*part.payloads])]
        assert [fault.kind for fault in run.faults] == ["workers_lost"]
        while sum(decisions(delivered).values()) < sum(decisions(fragments(records)).values()):
            if coming := [worker.ready_ref for worker in workers if worker.ready_ref is not None]:
                ray.wait(coming)
            first = len(run.rounds)
            run.play(ROUNDS)
            assert any(part.rows for round in run.rounds[first:] for part in round.fragments)
            delivered += [
                b for round in run.rounds[first:] for part in round.fragments for b in ray.get([*part.payloads])
            ]
    assert decisions(delivered) == decisions(fragments(records))
