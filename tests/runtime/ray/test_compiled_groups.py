"""Learners of several processes whose gradients are compiled: N + resume + N equals 2N, bit for bit, over Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.watching import Seen, reports
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.slow]

HALF, WHOLE = 720, 1_440
TWO = mf.PlacementOverrides(num_learners=2)


def run_of(algorithm: mf.Algorithm, placement: mf.PlacementOverrides, env_steps: int) -> mf.Experiment:
    """Four carts with the algorithm, in lockstep with two workers."""
    return small_run(
        "ray",
        env_steps,
        policies={"team": mf.Policy(algorithm, SMALL, placement)},
        mapping=[mf.Rule("*", "team")],
        log=mf.Log(every_env_steps=HALF, console="none", tensorboard=False),
    )


def of_runs(report: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs that did the same report equally; not how full Ray's store was."""
    found: dict[str, Any] = without_times({name: value for name, value in report.items() if name != "object_store"})
    return found


@pytest.mark.parametrize(
    ("algorithm", "placement"),
    [
        pytest.param(replace(SMALL_PPO, compile=True), TWO, id="leader and follower"),
        pytest.param(
            mf.DDPPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64, compile=True),
            mf.PlacementOverrides(),
            id="replicas on workers",
        ),
    ],
)
def test_a_learner_of_two_processes_that_is_compiled_and_resumed_is_equal(
    algorithm: mf.Algorithm, placement: mf.PlacementOverrides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, whole, parts = Seen(monkeypatch), tmp_path / "whole", tmp_path / "parts"
    mf.train(run_of(algorithm, placement, WHOLE), whole)
    mf.train(run_of(algorithm, placement, HALF), parts)
    half = kept(parts)
    mf.resume(run_of(algorithm, placement, WHOLE), parts)
    assert half["driver"]["flow"]["held"], "a batch was to be half gathered"
    assert any(env["running"] for env in half["workers"]["envs"]), "episodes were to be running"
    assert not any(update.note for update in seen.updates)
    # The reports of the whole run, of its first half, and of its second.
    assert sum(update.compiles for update in seen.updates) >= 3
    assert 0 < half["learner.team"]["updates"] < kept(whole)["learner.team"]["updates"]
    assert_equal([of_runs(one) for one in reports(parts)], [of_runs(one) for one in reports(whole)], "reports")
    assert_equal(kept(parts), kept(whole))
