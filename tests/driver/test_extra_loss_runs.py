"""Extra losses in whole runs: a resume continues them exactly, Ray takes them, and a trained policy needs none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from tests.algorithms.extra import Weight, entropy_floor
from tests.driver.kept_runs import kept
from tests.driver.resumed_runs import resumes_exactly
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, policies, small_run

# It ends between two of the batches that its coefficients change in.
HALF, WHOLE = 720, 1_360
EXTRA = {"floor": mf.ExtraLoss(partial(entropy_floor, floor=0.69), mf.Linear(5.0, 0.0, 1_000)), "weight": Weight(0.01)}


def with_extra_losses(**changes: Any) -> mf.Experiment:
    learning = policies(
        hunters=replace(SMALL_PPO, extra_losses=EXTRA),
        prey=replace(SMALL_DQN, extra_losses={"weight": Weight(mf.Linear(0.1, 0.0, 1_000))}),
    )
    return small_run(**{"policies": learning, **changes})


def test_a_resume_continues_scheduled_coefficients_bit_for_bit(tmp_path: Path) -> None:
    resumed = resumes_exactly(with_extra_losses(env_steps=WHOLE), tmp_path, HALF)
    last = resumed.metrics["learners"]
    assert last["hunters"]["loss"].keys() >= {"policy", "value", "entropy", "floor", "weight"}
    assert last["prey"]["loss"].keys() >= {"td", "weight"}
    # The two changed what was learned.
    mf.train(small_run(env_steps=WHOLE), tmp_path / "plain")
    plain, changed = (trees["learner.hunters"]["vector"] for trees in (kept(tmp_path / "plain"), resumed.trees))
    assert np.abs(plain - changed).max() > 1e-4


@pytest.mark.slow
def test_learners_and_workers_of_ray_take_functions_of_a_script(tmp_path: Path) -> None:
    size = 0.5

    def own(module: Any, minibatch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return size * module.actor(minibatch["obs"]).square().mean()

    learns = policies(hunters=replace(SMALL_PPO, extra_losses={"own": own}), prey=mf.Random())
    one_worker = mf.Rollouts(num_workers=1, fragment_env_steps=40)
    experiment = small_run("ray", policies=learns, rollouts=one_worker, env_steps=400)
    metrics = mf.train(experiment, tmp_path / "run").metrics
    assert metrics["learners"]["hunters"]["loss"]["own"] > 0


def test_a_policy_is_loaded_and_begun_with_where_its_extra_losses_are_not(tmp_path: Path) -> None:
    """They are functions of a script, which no other process can import."""
    run, later = tmp_path / "run", tmp_path / "later"
    learns = replace(SMALL_PPO, extra_losses={"own": lambda module, rows: module.actor(rows["obs"]).square().mean()})
    mf.train(small_run(policies=policies(hunters=learns, prey=mf.Random()), env_steps=400), run)
    trained = kept(run)["learner.hunters"]["published"]
    np.testing.assert_array_equal(mf.load(run)["hunters"].actor.flat(), trained)
    # With a learning rate of 0 it does not change.
    still = mf.Policy(
        replace(SMALL_PPO, learning_rate=0.0, extra_losses={"weight": Weight(0.1)}), SMALL, init=mf.FromRun(run)
    )
    mf.train(small_run(policies={"hunters": still, "prey": mf.Policy(mf.Random())}, env_steps=400), later)
    np.testing.assert_array_equal(kept(later)["learner.hunters"]["published"], trained)
