"""MAML in whole runs: resumed bit for bit, by any number of workers, and the same rows over Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import marlflow as mf
from marlflow.env.games import cartpole_family
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.ray import RayRuntime
from marlflow.sampling.saved_state import ResumeReport
from tests.runtime.driven_runs import driven
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run
from tests.runtime.test_save_and_restore import by_copies


def family(workers: int = 2, **policies: Any) -> mf.Experiment:
    """Two carts in each of four environments; 20 env steps of each in a round, in two phases."""
    chosen = policies or {"team": mf.MAML(epochs=2, minibatch_tasks=2, inner_learning_rate=1.0)}
    return small_run(
        env=mf.Env(cartpole_family.parallel_env, {"num_agents": 2, "max_cycles": 50}, num_envs=4),
        policies={name: mf.Policy(algorithm, SMALL) for name, algorithm in chosen.items()},
        mapping=tuple(mf.Rule(f"cart_{number}", name) for number, name in enumerate(chosen))
        if len(chosen) > 1
        else (mf.Rule("*", *chosen),),
        rollouts=mf.Rollouts(num_workers=workers, fragment_env_steps=80 // workers),
    )


def test_a_run_goes_on_bit_for_bit() -> None:
    with driven(family(), InlineRuntime()) as run:
        run.play(2)
        files = run.runtime.save({}).files
        run.play(2)
        expected = run.runtime.save({}).files
    with driven(family(), InlineRuntime()) as again:
        assert again.runtime.restore(files.__getitem__, list(files), 1_000) == ResumeReport()
        again.play(2)
        assert again.runtime.save({}).files == expected


def test_another_number_of_workers_makes_the_same_rows() -> None:
    with driven(family(), InlineRuntime()) as run:
        run.play(2)
        files = run.runtime.save({}).files
        run.play(1)
        expected = by_copies(run.rounds[-1:])
    with driven(family(workers=4), InlineRuntime()) as again:
        again.runtime.restore(files.__getitem__, list(files), 1_000)
        again.play(1)
        assert by_copies(again.rounds) == expected


def test_rows_are_adapted_and_meta_updates_are_of_agent_steps() -> None:
    with driven(family(), InlineRuntime()) as run:
        run.play(3)
    for round, update in zip(run.rounds, run.updates["team"], strict=True):
        assert update.rows == 2 * round.rows
        assert (update.updates, update.staleness_mean) == (4, 0.0)
        for fragment in round.fragments:
            (batch,) = fragment.payloads
            assert set(batch.segments["adapted"].tolist()) == {0, 1}
    assert run.versions["team"] == [0, 1, 2]


def test_it_may_share_its_environment_with_ppo() -> None:
    with driven(family(meta=mf.MAML(), other=SMALL_PPO), InlineRuntime()) as run:
        run.play(5)
    assert len(run.updates["meta"]) == 5
    assert run.updates["other"]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_over_ray_it_learns_the_same() -> None:
    def learned(runtime: Runtime) -> list[Mapping[str, float]]:
        with driven(family(workers=1), runtime) as run:
            run.play(2)
            return [update.loss for update in run.updates["team"]]

    for found, expected in zip(learned(RayRuntime()), learned(InlineRuntime()), strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
