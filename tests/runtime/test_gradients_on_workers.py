"""Gradients found on the workers: A3C's numbers are A2C's as long as rows are fresh, and else its own, in turn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.serialization import to_bytes
from marlflow.flow.relocate import Where
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.stage_chain import merge_payloads, pack_batch, unpack_batch
from tests.driver.kept_runs import kept
from tests.runtime.relocated_runs import Ran, assert_same, placed, run
from tests.runtime.test_relocation import problems

ROUNDS = 6
A2C_OF_A_ROUND, SAME = mf.A2C(batch_agent_steps=1, gae_lambda=0.9), mf.A3C(gae_lambda=0.9)
AT_THE_LEARNER: dict[str, Where] = {"Advantages": "learner", "ComputeGradients": "learner"}


def inline(algorithm: Any, stages: dict[str, Where] | None = None, workers: int = 1) -> Ran:
    rollouts = mf.Rollouts(num_workers=workers, fragment_env_steps=40)
    return run(placed(algorithm, stages or {}, rollouts=rollouts), InlineRuntime(), ROUNDS)


def test_with_one_worker_a3c_is_a2c_bit_for_bit() -> None:
    a2c, a3c = inline(A2C_OF_A_ROUND), inline(SAME)
    assert len(a2c.reports) == ROUNDS
    assert a3c.reports == a2c.reports
    assert_same(a3c.kept["learner.hunters"]["vector"], a2c.kept["learner.hunters"]["vector"])
    assert "[Advantages(discount=0.99, gae_lambda=0.9) → ComputeGradients] at rollout workers" in a3c.plan
    assert a3c.meters["hunters/ComputeGradients"]["rows"] == sum(report.rows for report in a3c.reports)


@pytest.mark.parametrize("stages", [AT_THE_LEARNER, {"ComputeGradients": "learner"}, {"ComputeGradients": "driver"}])
def test_it_does_not_matter_where_fresh_rows_have_their_gradient_found(stages: dict[str, Where]) -> None:
    expected, found = inline(SAME), inline(SAME, stages)
    assert found.reports == expected.reports
    assert_same(found.kept["learner.hunters"]["vector"], expected.kept["learner.hunters"]["vector"])


def test_in_lockstep_each_workers_gradient_is_applied_in_turn_and_the_second_is_a_version_old() -> None:
    ran = inline(SAME, workers=2)
    assert [report.version for report in ran.reports] == list(range(2 * ROUNDS))
    assert all(report.updates == 1 for report in ran.reports)
    # Only the first round has no row carried over from an earlier version.
    assert [report.staleness_mean for report in ran.reports[:2]] == [0.0, 1.0]
    assert all(later.staleness_mean >= 1.0 for later in ran.reports[1::2])
    assert all(first.staleness_mean < 1.0 for first in ran.reports[::2])


def test_a_gradient_is_by_the_weights_of_its_worker_not_by_what_the_learner_has_learned_since() -> None:
    by_workers, by_learner = inline(SAME, workers=2), inline(SAME, AT_THE_LEARNER, workers=2)
    assert by_workers.reports[0] == by_learner.reports[0]
    assert by_workers.reports[1].loss != by_learner.reports[1].loss


def test_scheduled_coefficients_reach_the_workers(tmp_path: Path) -> None:
    falling = mf.A3C(gae_lambda=0.9, entropy_coefficient=mf.Linear(5.0, 0.0, agent_steps=200))
    vectors = []
    for name, stages in (("workers", {}), ("learner", AT_THE_LEARNER)):
        rollouts = mf.Rollouts(num_workers=1, fragment_env_steps=40)
        mf.train(placed(falling, stages, rollouts=rollouts, stop=mf.Stop(env_steps=160)), tmp_path / name)
        vectors.append(kept(tmp_path / name)["learner.hunters"]["vector"])
    assert_same(*vectors)


@pytest.mark.parametrize(
    ("algorithm", "stages", "reason"),
    [
        (mf.A3C(), {"ApplyGradients": "worker"}, "it updates learner 'hunters'"),
        (mf.A3C(), {"Advantages": "learner"}, "it gives no segments, but 'Advantages', which it would come ahead of"),
        (
            mf.A2C(microbatches=2),
            {"Advantages": "worker", "ComputeGradients": "worker"},
            "it gives no segments, but 'DropStale', which it would come ahead of, takes them",
        ),
    ],
)
def test_what_cannot_be_moved_says_why(algorithm: Any, stages: dict[str, Where], reason: str) -> None:
    (problem,) = problems(algorithm, stages)
    assert reason in problem


# -- on their way -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 7])
def test_gradients_that_wait_come_back_as_they_were(rows: int) -> None:
    loss = {"policy": -0.5, "value": 3.0} if rows else {}
    gradients = mf.Gradients(np.arange(5, dtype=np.float32) / 3, rows, loss, 2.5 if rows else math.nan, min(rows, 2))
    again: Any = unpack_batch(pack_batch(gradients))
    assert type(again) is mf.Gradients
    assert again.flat.dtype == np.float32
    np.testing.assert_array_equal(again.flat, gradients.flat)
    assert (again.rows, again.loss, again.rows_carried) == (gradients.rows, gradients.loss, gradients.rows_carried)
    np.testing.assert_equal(again.version_mean, gradients.version_mean)


def test_gradients_with_something_amiss_are_refused() -> None:
    with pytest.raises(mf.CheckpointUnusable, match="gradients"):
        unpack_batch(to_bytes({"kind": "Gradients", "rows": 3}))


def test_several_gradients_are_handed_over_as_their_mean() -> None:
    one, other = (mf.Gradients(np.full(2, value, np.float32), rows) for value, rows in ((1.0, 1), (5.0, 3)))
    assert merge_payloads([one]) is one
    mean = merge_payloads([one, other])
    assert (mean.flat.tolist(), mean.rows) == ([4.0, 4.0], 4)
