"""Where a stage runs changes neither the plan's author's code nor a number, as long as rows are fresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.plans import drawn_plan
from marlflow.flow.relocate import Where
from marlflow.runtime.inline import InlineRuntime
from tests.runtime.relocated_runs import Ran, assert_same, placed, run
from tests.runtime.small_runs import SMALL_DQN, SMALL_PPO
from tests.sentences import refusals

ROUNDS = 6
PLACES: list[Where] = ["learner", "worker", "driver"]


def inline(algorithm: Any, **stages: Where) -> Ran:
    return run(placed(algorithm, stages), InlineRuntime(), ROUNDS)


@pytest.fixture(scope="module")
def ppo() -> Ran:
    return inline(SMALL_PPO)


@pytest.fixture(scope="module")
def dqn() -> Ran:
    return inline(SMALL_DQN)


@pytest.mark.parametrize("where", PLACES)
def test_advantages_are_the_same_bit_for_bit_wherever_they_are_estimated(ppo: Ran, where: Where) -> None:
    moved = inline(SMALL_PPO, Advantages=where)
    assert len(ppo.reports) >= 5
    assert moved.reports == ppo.reports
    assert_same(moved.kept["learner.hunters"], ppo.kept["learner.hunters"])
    assert moved.meters["hunters/Advantages"]["rows"] == ppo.meters["hunters/Advantages"]["rows"]
    assert moved.meters["hunters/Advantages"]["busy_s"] > 0


@pytest.mark.parametrize("where", PLACES)
def test_a_replay_holds_and_gives_the_same_wherever_windows_are_summed(dqn: Ran, where: Where) -> None:
    moved = inline(SMALL_DQN, NStep=where)
    assert len(dqn.reports) >= 20
    assert moved.kept.keys() == dqn.kept.keys()
    for name in ("learner.hunters", "replay.hunters"):
        assert_same(moved.kept[name], dqn.kept[name])
    rows = next(name for name in dqn.kept if name.startswith("rows.hunters.") and dqn.kept[name])
    assert_same(moved.kept[rows], dqn.kept[rows])


def test_several_stages_move_at_once_and_each_is_metered_under_its_name(ppo: Ran) -> None:
    moved = inline(SMALL_PPO, Advantages="worker", Normalize="driver")
    assert_same(moved.kept["learner.hunters"], ppo.kept["learner.hunters"])
    assert moved.meters["hunters/Advantages"]["items"] == ROUNDS * 2, "it ran on every fragment"
    assert moved.meters["hunters/Normalize"]["items"] == len(ppo.reports)
    assert " ".join(line.strip("└─ ") for line in moved.plan.splitlines()[3:]) == (
        "queue(4) → [Advantages(discount=0.99, gae_lambda=0.95)] at rollout workers → Concat(agent_steps=200)"
        " → [DropStale(max_staleness=0)] at learner hunters → [Normalize] at driver"
        " → [Learn(epochs=2, minibatch=64) → Publish(every=1)] at learner hunters"
    )


@dataclass(frozen=True)
class Watched:
    """Lets batches pass, and keeps what version their values are of."""

    seen: ClassVar[list[tuple[int, list[int], list[int]]]] = []

    def __call__(self, batch: mf.EstimatedBatch, learner: mf.Learner) -> mf.EstimatedBatch:
        versions = np.unique(batch.segments["estimated_by"]), np.unique(batch.columns["version"])
        Watched.seen.append((learner.version, *[found.tolist() for found in versions]))
        return batch


@dataclass(frozen=True)
class WatchedPPO(mf.PPO):
    """PPO that shows its training rows."""

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replay: mf.Replay | None = None) -> mf.Plan:
        plan = super().plan(experience, learner, replay)
        publish = plan.output
        learn = publish.inputs[0]
        watched: mf.Flow[Any] = learn.inputs[0].then(Watched(), at=learner)
        learned = watched.then(learn.operator, at=learner).then(publish.operator, at=learner)
        return mf.Plan("ppo", learned, waits_for_rounds=True)


@pytest.mark.parametrize("where", PLACES)
def test_rows_say_which_version_valued_them(where: Where) -> None:
    Watched.seen.clear()
    inline(WatchedPPO(batch_agent_steps=200, epochs=1, minibatch_agent_steps=64), Advantages=where)
    assert [version for version, _, _ in Watched.seen] == list(range(len(Watched.seen)))
    assert all(valued == [version] for version, valued, _ in Watched.seen)
    assert all(max(acted) == version for version, _, acted in Watched.seen)


def test_a_state_goes_on_where_the_stages_are_placed_otherwise(ppo: Ran) -> None:
    specs = [ready(placed(SMALL_PPO, stages)).spec for stages in ({}, {"Advantages": "worker"})]
    beside, moved = (spec.learners["hunters"].learner() for spec in specs)
    moved.load_state(ppo.kept["learner.hunters"])
    acting = len(beside.published[beside.name].flat)
    np.testing.assert_array_equal(moved.published[moved.name].flat, ppo.kept["learner.hunters"]["vector"])
    np.testing.assert_array_equal(moved.published[moved.name].flat[:acting], ppo.kept["learner.hunters"]["published"])
    assert moved.published[moved.name].version == ppo.kept["learner.hunters"]["version"]
    beside.load_state(moved.state())
    np.testing.assert_array_equal(beside.published[beside.name].flat, ppo.kept["learner.hunters"]["published"])


@dataclass(frozen=True)
class CountedPPO(mf.PPO):
    """PPO that counts how often its plan is built."""

    built: ClassVar[list[str]] = []

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replays: Sequence[mf.Replay] = ()) -> mf.Plan:
        self.built.append(learner.name)
        return super().plan(experience, learner, replays)


@pytest.mark.parametrize("where", PLACES)
def test_the_driver_builds_a_plan_once_and_a_worker_only_if_stages_run_there(where: Where) -> None:
    experiment = placed(CountedPPO(), {"Advantages": where})
    spec = ready(experiment).spec
    CountedPPO.built.clear()
    drawn_plan(experiment, spec)
    assert CountedPPO.built == ["hunters"]
    assert (spec.learners["hunters"].relocated_stages.on_worker() is not None) == (where == "worker")
    assert len(CountedPPO.built) == (2 if where == "worker" else 1)


def problems(algorithm: Any, stages: Mapping[str, Any]) -> tuple[str, ...]:
    experiment = placed(algorithm, stages)
    return refusals(mf.PlanInvalid, drawn_plan(experiment, ready(experiment).spec).check)


@pytest.mark.parametrize(
    ("algorithm", "stages", "reason"),
    [
        (
            mf.PPO(),
            {"Advantges": "worker"},
            "it has no stage 'Advantges' to run on the worker; did you mean 'Advantages'?",
        ),
        (mf.PPO(), {"Normalize": "worker"}, "cannot run on the worker: it needs whole batches, not fragments"),
        (mf.PPO(), {"Learn": "driver"}, "cannot run on the driver: it updates learner 'hunters'"),
        (mf.PPO(), {"Publish": "worker"}, "cannot run on the worker: it hands out its learner's weights"),
        (mf.PPO(), {"DropStale": "worker"}, "cannot run on the worker: its learner reports what it drops"),
        (mf.PPO(), {"Concat": "worker"}, "cannot run on the worker: it is a gather; only a then can be moved"),
        (mf.DQN(), {"Draw": "worker"}, "cannot run on the worker: it is a source; only a then can be moved"),
        (mf.DQN(), {"Insert": "driver"}, "its operator does not say that it may run apart from its learner or replay"),
        (
            mf.DQN(),
            {"SyncTarget": "learner", "queue": "learner"},
            "it has no stage 'queue' to run on the learner; it has",
        ),
    ],
)
def test_what_cannot_be_moved_is_told_before_anything_starts(algorithm: Any, stages: Any, reason: str) -> None:
    (problem,) = problems(algorithm, stages)
    assert problem.startswith("plan 'hunters': ")
    assert reason in problem


def test_all_that_cannot_be_moved_is_told_at_once() -> None:
    assert len(problems(mf.PPO(), {"Lern": "worker", "Normalize": "worker", "Learn": "driver"})) == 3


@dataclass(frozen=True)
class Falls:
    """Raises where it runs."""

    traits: ClassVar[mf.Traits] = mf.Traits(movable="fragments")

    def __call__(self, batch: mf.Batch) -> mf.EstimatedBatch:
        raise KeyError("mine")


@dataclass(frozen=True)
class FallingPPO(mf.PPO):
    """An algorithm whose stage raises."""

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replay: mf.Replay | None = None) -> mf.Plan:
        gathered: mf.Flow[Any] = (
            experience.gather(mf.Concat(100)).then(Falls(), at=learner).then(mf.Learn(), at=learner)
        )
        return mf.Plan("ppo", gathered)


def test_an_error_on_a_worker_names_the_stage_and_the_policy() -> None:
    with pytest.raises(mf.StageFailed) as told:
        inline(FallingPPO(), Falls="worker")
    assert "in stage 'Falls' of plan 'hunters': Falls, on the rollout workers\nKeyError: 'mine'" in str(told.value)
