"""Over Ray a learner begins with the same parameters as inline, and a frozen policy is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.config.imported_policies import load_policy
from marlflow.runs.saved_runs import newest
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

pytestmark = pytest.mark.slow


def test_a_learner_over_ray_begins_with_parameters_of_another_run(tmp_path: Path) -> None:
    mf.train(small_run(env_steps=240), tmp_path / "source")
    never = replace(SMALL_PPO, batch_agent_steps=100_000)
    policies = {
        "hunters": mf.Policy(never, SMALL, init=mf.FromRun(tmp_path / "source")),
        "prey": mf.Policy(mf.Frozen(tmp_path / "source")),
    }
    mf.train(small_run("ray", env_steps=80, policies=policies), tmp_path / "run")
    state = from_bytes(newest(tmp_path / "run").read("learner.hunters"))
    source = from_bytes(newest(tmp_path / "source").read("learner.hunters"))
    for name in ("vector", "published"):
        np.testing.assert_array_equal(state[name], source[name])
    for name in ("hunters", "prey"):
        assert load_policy(tmp_path / "run", name).sha256 == load_policy(tmp_path / "source", name).sha256
