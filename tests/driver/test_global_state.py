"""Algorithms that learn from the global state: their rows have it, and where there is none they are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.checks.validation import ready
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.sampling.worker import RolloutWorker
from tests.runtime.small_runs import SMALL_DQN, policies, small_run
from tests.sentences import wrong_with


class Central(mf.DQN):
    """A user's own: it asks for the state."""

    name = "central"
    capabilities = replace(mf.DQN.capabilities, state=True)


CENTRAL = Central(**vars(SMALL_DQN))


class SeenFromAbove(CartPoleTeam):
    """Its state is the number of env steps so far, and the number of upright poles."""

    state_space = Box(0.0, 1_000.0, (2,), np.float32)

    def state(self) -> Array:
        return np.array([self._cycles, len(self.agents)], np.float32)


def test_an_algorithm_that_needs_the_state_needs_an_environment_that_has_one() -> None:
    experiment = small_run(policies=policies(hunters=CENTRAL, prey=SMALL_DQN))
    assert wrong_with(experiment) == [
        "policy 'hunters' (central) needs the environment's state, and parallel_env has no state() with a Box for its "
        "state_space; add wrappers=joint_state, or use an algorithm that needs none"
    ]


def test_only_the_rows_of_who_needs_it_have_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, mf.Batch]] = []
    collect = RolloutWorker.collect

    def see(worker: RolloutWorker, *given: Any) -> Any:
        receipt, batches = collect(worker, *given)
        if len(batches) > 1:  # else a policy is tried by itself, before the run
            made.append(batches)
        return receipt, batches

    monkeypatch.setattr(RolloutWorker, "collect", see)
    experiment = small_run(policies=policies(hunters=CENTRAL, prey=SMALL_DQN), env=mf.Env(SeenFromAbove, num_envs=4))
    assert ready(experiment).spec.with_state == ("hunters",)
    result = mf.train(experiment, tmp_path)
    assert result.metrics["learners"]["hunters"]["updates"] > 0
    rows = 0
    for batches in made:
        assert "state" not in batches["prey"].columns
        columns = batches["hunters"].columns
        rows += len(columns["state"])
        np.testing.assert_array_equal(columns["state"][:, 0], columns["t_env"])
        assert (columns["state"][:, 1] >= 1).all()
    assert rows == result.metrics["policies"]["hunters"]["agent_steps_sampled"]
