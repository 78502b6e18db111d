"""A population of which two learning rates hardly learn finds one that does, and all its policies keep poles up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlflow.checks.validation import from_config
from marlflow.cli.arguments import Words
from marlflow.cli.job import prepared
from marlflow.driver.train import train

SHORT = ["runtime=inline", "stop.env_steps=30000", "evaluation.episodes=0", "evaluation.final_episodes=20"]


@pytest.mark.learning
@pytest.mark.parametrize("seed", range(1, 4))
def test_policies_that_hardly_learn_copy_those_that_do(seed: int, tmp_path: Path) -> None:
    """Of three seeds, with the population each policy had 171 or more; alone a had 24 to 29, and b 42 to 53."""
    ready = prepared(Words(overrides=["experiment=cartpole_team_pbt", *SHORT, "log.console=none", f"seed={seed}"]))
    experiment = from_config(ready.config, ready.problems)
    returns = {}
    for name, callbacks in {"population": experiment.callbacks, "alone": {}}.items():
        policies = train(replace(experiment, callbacks=callbacks), tmp_path / name).metrics["policies"]
        returns[name] = {policy: metrics["eval_return_mean"] or 0.0 for policy, metrics in policies.items()}
    assert min(returns["population"].values()) > 140.0
    assert max(returns["alone"]["a"], returns["alone"]["b"]) < 80.0
