"""Environments that end their process, as a crash in C would, in a few episodes: the run goes on without these."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import marlflow as mf
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


class Deadly(ParallelEnv[str, Any, Any]):
    """Episodes of 17 env steps; those of every 23rd seed end the process in the fourth."""

    metadata: ClassVar = {"name": "deadly"}
    possible_agents: ClassVar = ["cart_0", "cart_1"]

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 20, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        self.agents, self._steps, self._is_deadly = list(self.possible_agents), 0, seed % 23 == 0
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> Any:
        return {agent: np.full(1, self._steps, np.float32) for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self._steps += 1
        if self._is_deadly and self._steps == 4:
            os._exit(3)
        seen, agents, over = self._seen(), self.agents, self._steps == 17
        self.agents = [] if over else agents
        flags = dict.fromkeys(agents, over), dict.fromkeys(agents, False)
        return seen, dict.fromkeys(agents, 1.0), *flags, {agent: {} for agent in agents}


def test_rounds_and_evaluations_leave_out_what_ends_their_processes(tmp_path: Path) -> None:
    experiment = replace(
        small_run(
            "ray", env_steps=2_400, policies={"cart": mf.Policy(SMALL_PPO, SMALL)}, mapping=[mf.Rule("*", "cart")]
        ),
        env=mf.Env(Deadly),
        seed=3,
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=80),
        evaluation=mf.Evaluation(1_000_000, 20, 0),
    )
    result = mf.train(experiment, tmp_path)
    assert result.metrics["env_steps"] >= 2_400
    assert result.metrics["faults"]["workers_lost"] > 2, "some episodes were to end a process"
    evaluated: Any = result.metrics["policies"]["cart"]
    assert (evaluated["eval_return_mean"], evaluated["return_mean"]) == (17.0, 17.0)
    assert 10 < evaluated["eval_episodes"] <= evaluated["eval_episodes_asked"] == 20
