"""MAML learns to adapt: on tasks that it has not seen, one inner step makes a team better, by a paired test."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.meta import adapted_returns, experiment_of, learned
from marlflow.checks.validation import ready
from marlflow.driver.train import train


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(3))
def test_one_inner_step_makes_a_team_better_in_tasks_it_has_not_seen(seed: int, tmp_path: Path) -> None:
    """In a half of the env steps of the benchmark; without training one step is worth less than 10 steps of 100."""
    experiment = experiment_of(f"seed={seed}", "runtime=inline", "stop.env_steps=48000", "log.console=none")
    train(experiment, tmp_path)
    shown = adapted_returns(ready(experiment).spec, learned(tmp_path))
    assert shown.p() < 0.01
    assert (shown.after - shown.before).mean() > 15.0
