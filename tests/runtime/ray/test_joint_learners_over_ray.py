"""A learner of two policies over Ray: several processes learn as one, and a lost one comes back for both policies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import ray

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.runs.saved_runs import newest
from marlflow.runtime.ray import RayRuntime
from tests.driver.joint_learning import Team, team_run
from tests.runtime.driven_runs import driven
from tests.runtime.ray.deadly import kill

pytestmark = pytest.mark.usefixtures("ray_session")

MEMBERS = ("speaker", "listener")
ONE_WORKER = mf.Rollouts(num_workers=1, fragment_env_steps=40)


@pytest.mark.slow
def test_a_lost_learner_is_replaced_with_the_parameters_of_both_policies() -> None:
    with driven(team_run(runtime="ray", rollouts=ONE_WORKER), RayRuntime()) as run:
        run.play(12)  # far from the parameters at the start
        run.runtime.save({})  # a lost learner comes back as it was in the last checkpoint
        before = run.parts.published()
        kill(run.parts.learners["pair"].place.host.processes[0])
        run.play(3)
        assert [(fault.kind, fault.where) for fault in run.faults] == [("learners_lost", "learner pair")]
        after = run.parts.published()
        assert after["speaker"].version == after["listener"].version > before["speaker"].version
        versions = [update.version for update in run.updates["pair"]]
        assert len(set(versions)) == len(versions), "no version is published twice"
        for policy in MEMBERS:
            # The successor learns on from what was published, not from new parameters.
            flat, start = (ray.get(weights[policy].flat) for weights in (after, before))
            new = run.spec.learners["pair"].learner().published[policy].flat
            assert np.abs(flat - start).mean() < np.abs(flat - new).mean() / 2


@pytest.mark.slow
def test_a_lost_learner_with_a_replay_of_joint_rows_begins_to_store_and_learns_on() -> None:
    vdn = mf.VDN(
        batch_agent_steps=16, train_every_agent_steps=8, learning_starts_agent_steps=40, publish_every_updates=1
    )
    pair = {"pair": mf.LearnerConfig(MEMBERS, vdn)}
    with driven(team_run(runtime="ray", rollouts=ONE_WORKER, learners=pair), RayRuntime()) as run:
        run.play(4)
        run.runtime.save({})
        before, learned = run.parts.published(), len(run.updates["pair"])
        assert learned > 0
        kill(run.parts.learners["pair"].place.host.processes[0])
        # Rounds do not wait for an off-policy learner, and how soon its successor learns depends on the machine.
        for _ in range(30):
            run.play(5)
            if len(run.updates["pair"]) > learned:
                break
        assert {fault.kind for fault in run.faults} >= {"learners_lost"}
        after = run.parts.published()
        assert after["speaker"].version == after["listener"].version > before["listener"].version
        assert len(run.updates["pair"]) > learned, "the replay was empty, and learning starts again"
        versions = [update.version for update in run.updates["pair"]]
        assert versions == sorted(set(versions)), "versions rise together, and none is published twice"


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    vectors = {}
    # One process over Ray learns exactly what inline does: see tests/driver/test_joint_learning.py.
    for runtime, number in (("inline", 1), ("ray", 2)):
        placement = mf.PlacementOverrides(num_learners=number)
        pair = mf.LearnerConfig(MEMBERS, Team(), placement=placement)
        folder = tmp_path / str(number)
        result = mf.train(team_run(240, runtime, rollouts=ONE_WORKER, learners={"pair": pair}), folder)
        assert result.metrics["learners"]["pair"]["version"] > 2
        vectors[number] = from_bytes(newest(folder).read("learner.pair"))["vector"]
    np.testing.assert_allclose(vectors[1], vectors[2], rtol=1e-3, atol=1e-5)
    assert not np.array_equal(vectors[1], team_run_start())


def team_run_start() -> np.ndarray:
    """The vector of parameters before the first update."""
    from marlflow.checks.validation import ready

    vector: np.ndarray = ready(team_run(240)).spec.learners["pair"].learner().state()["vector"]
    return vector
