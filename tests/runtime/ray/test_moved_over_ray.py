"""Stages elsewhere, over processes: the numbers of one process, and no row on the driver unless it was asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from marlflow.config.experiment import Experiment, RunPlacement
from marlflow.flow.relocate import Where
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.ray import RayRuntime
from marlflow.runtime.spec import InferencePlacement
from tests.runtime.ray.unopened import guarded
from tests.runtime.relocated_runs import Ran, placed, placed_together, run
from tests.runtime.small_runs import HALVES, SMALL_DQN, SMALL_PPO

pytestmark = pytest.mark.usefixtures("ray_session")

ROUNDS = 4
PPO_OF_A_ROUND = replace(SMALL_PPO, batch_agent_steps=80, minibatch_agent_steps=32)
NEVER_LEARNING = replace(SMALL_DQN, learning_starts_agent_steps=10_000)


def assert_learned_alike(ran: Ran, one_process: Ran) -> None:
    for one, other in zip(ran.reports, one_process.reports, strict=True):
        assert (one.rows, one.updates, one.version) == (other.rows, other.updates, other.version)
    vector, expected = (found.kept["learner.hunters"]["vector"] for found in (ran, one_process))
    np.testing.assert_allclose(vector, expected, rtol=1e-6, atol=1e-7)
    meter, other = (found.meters["hunters/Advantages"] for found in (ran, one_process))
    assert meter["rows"] == other["rows"]
    assert meter["busy_s"] > 0


def test_stages_on_workers_give_the_numbers_of_one_process_and_the_driver_opens_no_rows() -> None:
    def experiment(advantages: Where, n_step: Where, placement: RunPlacement) -> Experiment:
        both = {"hunters": (PPO_OF_A_ROUND, {"Advantages": advantages}), "prey": (NEVER_LEARNING, {"NStep": n_step})}
        return placed_together(both, HALVES, placement=placement)

    one_process = run(experiment("learner", "learner", RunPlacement()), InlineRuntime(), ROUNDS)
    with pytest.MonkeyPatch.context() as patch:
        guarded(patch)
        # The workers get their weights as references then: they have to open them for their critic.
        ran = run(experiment("worker", "worker", RunPlacement(inference=InferencePlacement())), RayRuntime(), ROUNDS)
    assert len(ran.reports) == ROUNDS
    assert_learned_alike(ran, one_process)
    (rows,) = [name for name in ran.kept if name.startswith("rows.prey.")]
    for column in ("obs", "reward", "discount", "next"):
        np.testing.assert_array_equal(ran.kept[rows]["columns"][column], one_process.kept[rows]["columns"][column])


@pytest.mark.slow
def test_the_driver_opens_rows_where_a_stage_is_to_run_there() -> None:
    one_process = run(placed(PPO_OF_A_ROUND, {}), InlineRuntime(), ROUNDS)
    ran = run(placed(PPO_OF_A_ROUND, {"Advantages": "driver"}), RayRuntime(), ROUNDS)
    assert len(ran.reports) == ROUNDS
    assert_learned_alike(ran, one_process)
