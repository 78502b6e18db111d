"""A network that draws random numbers learns the same from the same seed, and after a resume."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import pytest
import torch
from torch import nn

import marlflow as mf
from tests.driver.resumed_runs import resumes_exactly
from tests.runtime.small_runs import SMALL_DQN, SMALL_PPO, small_run


@dataclass(frozen=True)
class Dropping:
    """Fully connected layers with dropout."""

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        layers = nn.Sequential(nn.Flatten(), nn.Linear(prod(obs_shape), 8), nn.Tanh(), nn.Dropout(0.5))
        return layers, 8


@pytest.mark.parametrize("algorithm", [SMALL_PPO, SMALL_DQN], ids=["ppo", "dqn"])
def test_dropout_is_drawn_by_the_runs_seed(algorithm: mf.Algorithm, tmp_path: Path) -> None:
    experiment = small_run(env_steps=640)
    policies = {name: mf.Policy(algorithm, Dropping()) for name in experiment.policies}
    experiment = replace(experiment, policies=policies)
    resumed = resumes_exactly(experiment, tmp_path, 320)
    again = mf.train(experiment, tmp_path / "again").metrics
    for name, learner in resumed.metrics["learners"].items():
        assert learner["updates"] > 0
        assert again["learners"][name]["loss"] == learner["loss"]
