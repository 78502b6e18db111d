"""Teams with central critics over Ray: at staleness 0, what they learn is as inline, number for number."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.runs.saved_runs import newest
from tests.driver.watching import reports
from tests.runtime.small_runs import without_times
from tests.runtime.team_runs import teams

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.slow]

LEARNERS = ("mappo", "recurrent", "happo")


def test_mappo_recurrent_mappo_and_happo_learn_as_inline(tmp_path: Path) -> None:
    one_worker = mf.Rollouts(num_workers=1, fragment_env_steps=80)
    found, vectors = [], []
    for runtime in ("inline", "ray"):
        folder = tmp_path / runtime
        # Three learners and one worker on 4 CPUs.
        experiment = teams(400, runtime, rollouts=one_worker)
        mf.train(experiment, folder)
        found.append([{k: v for k, v in without_times(one).items() if k != "object_store"} for one in reports(folder)])
        checkpoint = newest(folder)
        vectors.append([from_bytes(checkpoint.read(f"learner.{name}"))["vector"] for name in LEARNERS])
    assert len(found[0]) >= 3
    assert found[0] == found[1]
    np.testing.assert_equal(vectors[1], vectors[0])
    assert all(one["rows_bootstrapped_at_death"] > 0 for one in found[1][-1]["learners"].values())


def test_two_processes_of_a_learner_take_turns_as_one_does(tmp_path: Path) -> None:
    vectors = {}
    # One process over Ray learns exactly what inline does: see above.
    for runtime, number in (("inline", 1), ("ray", 2)):
        experiment = teams(160, runtime, rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=80))
        happo = dataclasses.replace(experiment.learners["happo"], placement=mf.PlacementOverrides(num_learners=number))
        policies = {name: mf.Policy(mf.Random()) for name in ("mappo", "recurrent")}
        experiment = dataclasses.replace(
            experiment, learners={"happo": happo}, policies={**experiment.policies, **policies}
        )
        folder = tmp_path / str(number)
        assert mf.train(experiment, folder).metrics["learners"]["happo"]["version"] == 2
        vectors[number] = from_bytes(newest(folder).read("learner.happo"))["vector"]
    np.testing.assert_allclose(vectors[1], vectors[2], rtol=1e-3, atol=1e-5)
