"""A3C beside IMPALA over processes: gradients and rows go from who made them to who uses them, at any age."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.runtime.ray import RayRuntime
from tests.runtime.ray.unopened import guarded
from tests.runtime.relocated_runs import placed_together, run
from tests.runtime.small_runs import HALVES

pytestmark = pytest.mark.usefixtures("ray_session")

ROUNDS = 12


def test_each_gradient_is_applied_as_it_arrives_and_staleness_is_reported() -> None:
    both: Any = {"hunters": (mf.A3C(), {}), "prey": (mf.IMPALA(batch_agent_steps=100), {})}
    rollouts = mf.Rollouts(num_workers=2, fragment_env_steps=40, pace="asynchronous")
    with pytest.MonkeyPatch.context() as patch:
        guarded(patch, mf.Gradients)
        ran = run(placed_together(both, HALVES, rollouts=rollouts), RayRuntime(), ROUNDS)
    a3c, impala = ([report for report in ran.reports if report.learner == name] for name in both)
    assert len(a3c) >= ROUNDS
    assert [report.version for report in a3c] == list(range(len(a3c))), "each gradient gave a version"
    assert sum(report.rows for report in a3c) == ran.meters["hunters/ComputeGradients"]["rows"]
    assert {"policy", "value", "entropy", "grad_norm"} <= a3c[0].loss.keys()
    # Both workers began with the first version, so whose gradient came second was of an older one when it came.
    assert max(report.staleness_mean for report in a3c) >= 1.0
    assert impala
    assert [report.version for report in impala] == list(range(len(impala)))
    assert all(np.isfinite(report.staleness_mean) and report.staleness_mean >= 0.0 for report in impala)
