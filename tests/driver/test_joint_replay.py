"""Whole runs of a team that learns from a replay of joint rows, whose agents die, leave, come late and return."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.checks.validation import ready
from marlflow.config.plans import drawn_plan
from marlflow.runs.saved_runs import newest
from marlflow.sampling.protocol import Request
from tests.driver import coming_and_going
from tests.driver.joint_replay_learning import RecurrentSum, Sum, sum_run
from tests.driver.resumed_runs import resumes_exactly
from tests.sentences import refusals

EXPLORING = {"red": {"epsilon": 0.5}, "blue": {"epsilon": 0.5}}
GRU = {"red": mf.Policy(model=mf.GRU(6, (8,))), "blue": mf.Policy(model=mf.GRU(5, (6,)))}


def of(algorithm: Sum, **placement: Any) -> dict[str, Any]:
    """The settings of a learner by `algorithm`."""
    placed = mf.PlacementOverrides(**placement)
    return {"learners": {"both": mf.LearnerConfig(["red", "blue"], algorithm, placed)}}


def test_the_plan_says_who_sits_where() -> None:
    made = ready(sum_run())
    plan = drawn_plan(made.experiment, made.spec)
    plan.check()
    assert "[JoinSegments(red: 4 seats, blue: 2 seats, reward=sum) → NStep" in str(plan)
    assert made.spec.learners["both"].seats == {"red": (0, 2, 4, 5), "blue": (1, 3)}


def test_team_rewards_and_what_is_in_no_row_add_up_to_what_was_issued() -> None:
    spec = ready(sum_run(rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=20))).spec
    worker, join = spec.worker(0), mf.JoinSegments(spec.learners["both"].seats, "sum")
    coming_and_going.ISSUED.update(red=0.0, blue=0.0)
    weights = {
        name: weight for learner in spec.learners.values() for name, weight in learner.learner().published.items()
    }
    in_rows = unattributed = 0.0
    early = deaths = runs = episodes = 0
    for _ in range(12):
        receipt, batches = worker.collect(spec.ticks, Request(0, weights, EXPLORING))
        made = join(mf.JointBatches(batches))
        assert made.rows == sum(batch.rows for batch in batches.values())
        assert not made.columns["red:present"][:, 3].any()
        assert made.columns["state"].dtype == np.uint8
        in_rows += math.fsum(made.columns["reward"].tolist())
        unattributed += sum(one.reward_unattributed for one in receipt.policies.values())
        early += int(made.segments["seats_left_early"].sum())
        deaths += int(made.columns["red:terminated"].sum())
        runs, episodes = runs + len(made.segments["length"]), episodes + len(receipt.episodes)
    worker.close()
    # The last fragment may have open rows, but no agent of a Parallel environment has.
    assert in_rows + unattributed == pytest.approx(sum(coming_and_going.ISSUED.values()))
    assert min(early, deaths) > 10
    assert runs > episodes + 4 * 12, "some agents returned"


def test_agents_remember_in_joint_rows_what_they_remembered_when_they_decided() -> None:
    """The memory of each decision equals unrolling its run up to there, even if agents came, left and returned."""
    made = ready(
        sum_run(policies=GRU, **of(RecurrentSum()), rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=60))
    )
    spec, network = made.spec, made.spec.learners["both"].learner()
    worker, join = made.spec.worker(0), mf.JoinSegments(spec.learners["both"].seats)
    _, first = worker.collect(spec.ticks, Request(0, network.published, EXPLORING))
    _, second = worker.collect(spec.ticks, Request(0, network.published, EXPLORING))
    worker.close()
    segments = join(mf.JointBatches({name: mf.Batch.concat([first[name], second[name]]) for name in first}))
    starts = np.cumsum(segments.segments["length"]) - segments.segments["length"]
    late = 0
    for policy in spec.policies:
        torso = network.module.actors[policy].torso
        columns = {name: torch.as_tensor(segments.columns[f"{policy}:{name}"]) for name in ("obs", "memory", "present")}
        for row in range(segments.count):
            if row in starts:
                memory = columns["memory"][row]
            present = columns["present"][row]
            torch.testing.assert_close(memory[present], columns["memory"][row][present], atol=1e-5, rtol=1e-5)
            late += int((present & ~columns["present"][row - 1]).sum()) if row not in starts else 0
            with torch.no_grad():
                _, memory = torso.unroll(columns["obs"][row][:, None], memory, present[:, None])
    assert late > 5, "some agents came late"


def test_a_plan_without_joint_segments_is_refused_before_it_runs() -> None:
    class Forgetful(Sum):
        def plan(self, experience: Any, learner: Any, replays: Any) -> mf.Plan:
            rows = (
                experience.gather(mf.Concat(1)).then(mf.NStep(2, 0.9), at=replays[0]).then(mf.Insert(), at=replays[0])
            )
            return mf.Plan("forgetful", rows)

    assert refusals(mf.PlanInvalid, mf.plan, sum_run(**of(Forgetful())))[0] == (
        "stage 'NStep' of plan 'both' expects Batch, but 'Concat' gives JointBatches; "
        "put .then(JoinSegments(learner.seats), at=learner) between them"
    )


def test_initial_priorities_of_joint_rows_are_refused_before_the_run() -> None:
    class Eager(Sum):
        def plan(self, experience: Any, learner: Any, replays: Any) -> mf.Plan:
            rows = experience.gather(mf.Concat(1)).then(mf.JoinSegments(learner.seats), at=replays[0])
            stored = rows.then(mf.NStep(2, 0.9), at=replays[0]).then(mf.InitialPriorities(), at=learner)
            return mf.Plan("eager", stored.then(mf.Insert(), at=replays[0]))

    (problem,) = refusals(mf.ConfigInvalid, mf.plan, sum_run(**of(Eager())))
    assert "stage 'InitialPriorities' of its plan breaks" in problem
    assert "these are joint rows; leave it out: new joint rows have the largest priority" in problem


def test_updates_are_in_ratio_to_the_agent_steps_of_all(tmp_path: Path) -> None:
    result = mf.train(sum_run(240), tmp_path)
    both, policies = result.metrics["learners"]["both"], result.metrics["policies"]
    sampled = sum(policy["agent_steps_sampled"] for policy in policies.values())
    assert sampled < 240 * 6 * 0.9
    assert both["updates"] == (sampled - 40) // 8
    assert policies["red"]["version"] == policies["blue"]["version"] == both["version"] == both["updates"] // 2
    # A draw of 16 agent steps has 2 joint rows, of the 6 seats.
    assert 0 < both["agent_steps_trained"] <= both["updates"] * 2 * 6
    assert both["seats_left_early"] > 10
    replay = from_bytes(newest(tmp_path).read("replay.both"))
    assert replay["stop"] - replay["first"] <= 1_000 // 6


@pytest.mark.parametrize(
    "changes",
    [of(Sum(prioritized=True, replay_agent_steps=500)), {"policies": GRU, **of(RecurrentSum(), replay="own")}],
    ids=["prioritized", "recurrent, with a replay of its own process"],
)
def test_a_resumed_run_is_one_that_was_not_ended(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert resumes_exactly(sum_run(160, **changes), tmp_path, 80).metrics["learners"]["both"]["version"] > 4


def test_a_replay_with_other_seats_is_refused(tmp_path: Path) -> None:
    mf.train(sum_run(60), tmp_path)
    alone = {
        "policies": {"red": mf.Policy(model=mf.MLP((8,))), "blue": mf.Policy(mf.DQN(), mf.MLP((6,)))},
        "learners": {"both": mf.LearnerConfig(["red"], Sum())},
    }
    with pytest.raises(mf.MarlflowError):
        mf.resume(sum_run(120, **alone), tmp_path)


@pytest.mark.slow
def test_over_ray_rows_stay_in_their_processes_and_a_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ray_session: None
) -> None:
    run = sum_run(80, "ray", **of(Sum(), replay="own"), rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=40))
    with monkeypatch.context() as driver:
        for kind in (mf.Batch, mf.JointSegments, mf.JointTransitions):
            driver.setattr(kind, "__setstate__", lambda *_: pytest.fail("the driver opened rows"))
        first = mf.train(run, tmp_path)
        resumed = mf.resume(replace(run, stop=mf.Stop(120)), tmp_path)
    metrics = [result.metrics for result in (first, resumed)]
    for one in metrics:
        sampled = sum(policy["agent_steps_sampled"] for policy in one["policies"].values())
        assert one["learners"]["both"]["updates"] == (sampled - 40) // 8
    assert metrics[1]["learners"]["both"]["version"] > metrics[0]["learners"]["both"]["version"] > 0
