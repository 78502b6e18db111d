"""A speaker near a reference and a DQN listener: resumes are exact, and the penalty is in no metric."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.config.imported_policies import load_policy
from marlflow.env.games import token_signal
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run

HALF, WHOLE = 640, 1_280
NEAR = {"near": mf.KLToReference(0.1)}
MODEL = mf.Transformer(num_layers=1, hidden_size=8, num_heads=2)


def tokens(beta: float | None, env_steps: int, **changes: Any) -> mf.Experiment:
    """A run of a speaker that is a transformer, and of a DQN listener with dense layers."""
    speaker = mf.Policy(replace(SMALL_PPO, parts={"near": None if beta is None else mf.KLToReference(beta)}), MODEL)
    listener = mf.Policy(replace(SMALL_DQN, learning_starts_agent_steps=40), SMALL)
    policies = {"speaker": replace(speaker, **changes), "listener": listener}
    env = mf.Env(token_signal.env, {"num_classes": 3, "length": 2}, num_envs=4)
    return small_run(env=env, policies=policies, mapping=None, env_steps=env_steps)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "reference"
    mf.train(tokens(None, HALF), folder)
    return folder


def test_a_run_near_its_warm_start_and_its_beginning_continues_bit_for_bit(source: Path, tmp_path: Path) -> None:
    """The speaker's replicas are near what another run ended with, the listener near its own first parameters."""
    near = mf.DDPPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64, parts=NEAR)
    experiment = tokens(0.1, WHOLE, algorithm=near, init=mf.FromRun(source))
    listener = mf.Policy(replace(SMALL_PPO, parts=NEAR), SMALL)
    experiment = replace(experiment, policies={**experiment.policies, "listener": listener})
    assert "KLToReference(beta=0.1) → Advantages" in str(mf.plan(experiment))
    resumed = resumes_exactly(experiment, tmp_path, HALF)
    for name in ("speaker", "listener"):
        assert resumed.metrics["learners"][name]["loss"]["kl_to_reference"] != 0.0
        state = resumed.trees[f"learner.{name}"]
        assert not np.array_equal(state["published"], state["part.reference"])
    speaker = resumed.trees["learner.speaker"]
    np.testing.assert_array_equal(speaker["part.reference"], load_policy(source, "speaker").flat)


def test_at_zero_it_learns_as_without_bit_for_bit_and_reports_the_divergence(tmp_path: Path) -> None:
    mf.train(tokens(None, WHOLE), tmp_path / "without")
    mf.train(tokens(0.0, WHOLE), tmp_path / "zero")
    first, second = (kept(tmp_path / name)["learner.speaker"] for name in ("without", "zero"))
    reference = second.pop("part.reference")
    assert_equal(first, second)
    assert len(reference) == len(second["published"])
    last = reports(tmp_path / "zero")[-1]
    kl = last["learners"]["speaker"]["loss"].pop("kl_to_reference")
    # A mean over sampled actions may be below zero.
    assert 0.0 < abs(kl) < 1.0
    assert_equal(without_times(last["policies"]), without_times(reports(tmp_path / "without")[-1]["policies"]))


def test_returns_are_the_environments_whatever_the_penalty(tmp_path: Path) -> None:
    mf.train(tokens(1e6, HALF), tmp_path)
    for report in reports(tmp_path):
        assert 0.0 <= report["policies"]["speaker"]["return_mean"] <= 1.0
        assert report["policies"]["speaker"]["return_mean"] == report["policies"]["listener"]["return_mean"]
