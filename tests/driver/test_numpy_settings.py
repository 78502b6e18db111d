"""Settings that are numbers of NumPy, as of a search over `np.logspace`, are as good as Python's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import marlflow as mf
from marlflow.runs.saved_runs import newest
from tests.driver.kept_runs import without_times
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run

INTEGERS = {"n_step": 3, "train_every_agent_steps": 4, "learning_starts_agent_steps": 8}
NUMBERS = {
    "learning_rate": 1e-3,
    "entropy_coefficient": 0.01,
    "max_grad_norm": 0.5,
    "discount": 0.75,
    "gae_lambda": 0.5,
}


def squares(module: Any, minibatch: Any) -> Any:
    return module.actor(minibatch["obs"]).square().mean()


def run(integer: Any, number: Any) -> mf.Experiment:
    values = {name: number(value) for name, value in NUMBERS.items()}
    extra = {"squares": mf.ExtraLoss(squares, number(0.5))}
    ppo = replace(SMALL_PPO, epochs=integer(2), extra_losses=extra, **values)
    dqn = replace(SMALL_DQN, **{name: integer(value) for name, value in INTEGERS.items()})
    experiment = small_run(seed=integer(5))
    policies = {name: mf.Policy(each, SMALL) for name, each in zip(experiment.policies, (ppo, dqn), strict=True)}
    return replace(experiment, policies=policies)


def test_numbers_of_numpy_are_as_good_as_pythons(tmp_path: Path) -> None:
    plain = mf.train(run(int, lambda value: np.float32(value).item()), tmp_path / "plain").metrics
    numpy = mf.train(run(np.int64, np.float32), tmp_path / "numpy").metrics
    assert without_times(numpy) == without_times(plain)
    assert newest(tmp_path / "numpy").env_steps == numpy["env_steps"]
