"""R2D2 over Ray: sequences go from a replay to a learner unopened, and what is kept of them is as inline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import marlflow as mf
from marlflow.batches.sequences import SequenceTransitions
from tests.driver.watching import standing
from tests.runtime.ray.unopened import guarded
from tests.runtime.small_runs import SMALL_R2D2, small_run

pytestmark = pytest.mark.usefixtures("ray_session")


def test_the_ratio_is_exact_wherever_the_replay_lives_and_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(SMALL_R2D2, placement=mf.PlacementOverrides(replay="own"))
    experiment = small_run("ray", env_steps=300, policies={"hunters": own, "prey": SMALL_R2D2})
    with monkeypatch.context() as patch:
        guarded(patch, SequenceTransitions)
        first = mf.train(experiment, tmp_path).metrics
    again = replace(experiment, runtime=mf.RuntimeConfig("inline"), stop=mf.Stop(env_steps=450))
    for metrics in (first, mf.resume(again, tmp_path).metrics):
        for policy in (standing(metrics, name) for name in metrics["policies"]):
            assert policy["updates"] == (policy["agent_steps_sampled"] - 100) // 20
            assert policy["agent_steps_trained"] > 8 * policy["updates"]
