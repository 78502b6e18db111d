"""A limit on costs over Ray: two workers learn the same as inline, number for number, also after a resume."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import marlflow as mf
from marlflow.env.games import toll
from tests.driver.kept_runs import kept
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run, without_times

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.slow]

LIMITED = dataclasses.replace(
    SMALL_PPO, batch_agent_steps=100, parts={"cost": mf.CostLimit(0.25, multiplier_learning_rate=0.5)}
)


def roads(runtime: Literal["inline", "ray"], env_steps: int, batched: Any = "auto") -> mf.Experiment:
    return small_run(
        runtime,
        env_steps,
        env=mf.Env(toll.parallel_env, {}, num_envs=10, batched=batched),
        policies={"car": mf.Policy(LIMITED, SMALL)},
        mapping=None,
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=50),
        log=mf.Log(every_env_steps=100),
    )


def told(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in without_times(one).items() if k != "object_store"} for one in reports(folder)]


def test_two_workers_learn_as_inline_and_a_resume_goes_on(tmp_path: Path) -> None:
    # Inline steps the roads one by one, the others by one call.
    mf.train(roads("inline", 600, batched=False), tmp_path / "inline")
    mf.train(roads("ray", 300), tmp_path / "ray")
    mf.resume(roads("ray", 600), tmp_path / "ray")
    expected, found = told(tmp_path / "inline"), told(tmp_path / "ray")
    assert found == expected
    last = found[-1]["learners"]["car"]["loss"]
    assert last["multiplier"] > 0.0
    assert last["cost_mean"] is not None
    inline, over_ray = (kept(tmp_path / name)["learner.car"] for name in ("inline", "ray"))
    for name in ("vector", "part.multiplier"):
        np.testing.assert_array_equal(over_ray[name], inline[name])
