"""Two policies learn together from a replay of joint rows, beside a third that learns alone."""

from __future__ import annotations

from pathlib import Path

import marlflow as mf
from marlflow.config.plans import drawn_plan
from marlflow.config.validation import ready
from tests.driver.joint_replay_learning import sum_run


def test_the_plan_says_who_sits_where() -> None:
    made = ready(sum_run())
    plan = drawn_plan(made.experiment, made.spec)
    plan.check()
    assert "JoinSegments(speaker: 1 seat, listener: 1 seat, reward=sum)" in str(plan)


def test_a_team_learns_in_the_ratio_of_its_agent_steps(tmp_path: Path) -> None:
    result = mf.train(sum_run(240), tmp_path / "run")
    policies, pair = result.metrics["policies"], result.metrics["learners"]["pair"]
    sampled = policies["speaker"]["agent_steps_sampled"] + policies["listener"]["agent_steps_sampled"]
    assert pair["updates"] == (sampled - 40) // 8
    assert pair["version"] > 0
