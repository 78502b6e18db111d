"""Resets over Ray: what inline does, no row of before in a replay, and successors that begin with what was reset."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.runtime.ray import RayRuntime
from marlflow.runtime.ray.handles import LearnerHandle
from marlflow.sampling.receipts import Fault
from tests.driver.kept_runs import assert_equal, by_env, kept
from tests.driver.resetting import TURNS, with_resets
from tests.driver.test_resets import MAINS, RIVAL
from tests.runtime.ray.test_population_over_ray import said
from tests.runtime.small_runs import SMALL

pytestmark = pytest.mark.usefixtures("ray_session")

HALF, WHOLE = 400, 640


@pytest.mark.slow
def test_a_run_with_resets_is_as_inline_and_goes_on_as_it_would_have(tmp_path: Path) -> None:
    inline, parts = tmp_path / "inline", tmp_path / "parts"
    mf.train(with_resets(MAINS["ppo"], RIVAL, WHOLE, env=TURNS), inline)
    mf.train(with_resets(MAINS["ppo"], RIVAL, HALF, "ray", env=TURNS), parts)
    result = mf.resume(with_resets(MAINS["ppo"], RIVAL, WHOLE, "ray", env=TURNS), parts)
    assert result.metrics["faults"]["episodes_abandoned"] == 0
    assert_equal(said(parts), said(inline))
    one, other = kept(inline), kept(parts)
    for trees in (one, other):
        trees["workers"] = by_env(trees["workers"])
        trees["driver"].pop("flow")  # it has the meters of stages
    assert one["driver"]["resets"]["main"] == 3
    assert_equal(one, other)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The versions before and after each reset."""
    found: list[tuple[int, int]] = []
    reset = LearnerHandle.reset

    def noted(learner: LearnerHandle, *arguments: Any) -> None:
        before = learner.version
        reset(learner, *arguments)
        found.append((before, learner.version))

    monkeypatch.setattr(LearnerHandle, "reset", noted)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_a_replay_has_no_row_of_before(apart: bool, tmp_path: Path, versions: list[tuple[int, int]]) -> None:
    placement = mf.PlacementOverrides(replay="own" if apart else "with_learner")
    main = replace(MAINS["dqn"], placement=placement)
    mf.train(with_resets(main, RIVAL, 640, "ray", env=TURNS), tmp_path)
    assert len(versions) == 3
    assert all(before < after for before, after in versions)
    replay, rows = kept(tmp_path)["replay.main"], kept(tmp_path)["replay.main rows"]
    assert replay["first"] > 0, "it was to be emptied"
    assert rows["columns"]["version"].min() >= versions[-1][1]


@pytest.mark.slow
def test_a_learner_that_is_always_behind_gets_nothing_of_before(
    tmp_path: Path, versions: list[tuple[int, int]]
) -> None:
    main = mf.Policy(mf.IMPALA(batch_agent_steps=20, queue_fragments=2), SMALL)
    metrics = mf.train(with_resets(main, RIVAL, 640, "ray", env=TURNS), tmp_path).metrics
    assert len(versions) == 3
    assert metrics["policies"]["main"]["version"] > versions[-1][1]
    dropped = sum(meter["rows_dropped"] for stage, meter in metrics["stages"].items() if stage.startswith("main/"))
    flow = kept(tmp_path)["driver"]["flow"]
    held = [items for stage, items in flow["held"].items() if stage.startswith("main/")]
    waiting = sum(item["rows"] for items in held for item in items)
    trained = metrics["learners"]["main"]["agent_steps_trained"]
    assert dropped + waiting + trained == metrics["policies"]["main"]["agent_steps_sampled"]


def kill(actor: Any) -> None:
    """End an actor's process, and wait until that is known: until then a call may still reach it."""
    ray.kill(actor)
    with suppress(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.__ray_ready__.remote(), timeout=60)


def test_a_lost_learner_comes_back_as_it_was_reset_not_as_it_was_before() -> None:
    spec = ready(with_resets(MAINS["dqn"], RIVAL, 100, "ray")).spec
    faults: list[Fault] = []
    runtime = RayRuntime()
    try:
        parts = runtime.start(spec, faults.append)
        learner: Any = parts.learners["main"]
        start = spec.learners["main"].with_fresh_seed(1)
        # Lost before the reset: it is restarted, and then reset.
        kill(learner.actor)
        runtime.reset_learner(start)
        reset = learner.version
        assert reset > 0
        assert [fault.kind for fault in faults] == ["learners_lost", "replays_lost"]
        new = start.learner().published["main"].flat
        np.testing.assert_array_equal(ray.get(learner.published["main"].flat), new)
        # Lost after it, before a checkpoint.
        kill(learner.actor)
        learner.place.host.restart_blocking(RuntimeError("it was killed"))
        assert learner.version > reset
        np.testing.assert_array_equal(ray.get(learner.published["main"].flat), new)
        # To the weights of a version that the driver has as a reference.
        other = spec.learners["main"].with_fresh_seed(2)
        runtime.reset_learner(other, [learner.published["main"].flat])
        np.testing.assert_array_equal(ray.get(learner.published["main"].flat), new)
    finally:
        runtime.close()
