"""The Ray runtime: rows stay in the store, weights travel once, and all is as inline.

Starting processes is what takes the time, so two runs are made once and looked at by several tests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from marlflow.algorithms.scripted import Random
from marlflow.base.serialization import from_bytes
from marlflow.batches.items import Update, Weights
from marlflow.config.experiment import Evaluation, Log, PlacementOverrides, Policy, Rollouts
from marlflow.config.plans import RoundHooks, build_plan, drawn_plan
from marlflow.driver.learner_totals import LearnerTotals
from marlflow.driver.train import Result, train
from marlflow.flow import Outcome
from marlflow.flow.protocols import StageCall, stage_call
from marlflow.observe.timeline import overlap_s
from marlflow.observe.trace_events import TRACE, read_trace
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.protocol import RunComponents, Runtime
from marlflow.runtime.ray import RayRuntime
from marlflow.runtime.ray.remote_worker import RemoteWorker
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.protocol import Request, Round
from marlflow.stages import Draw, Insert, Learn, NStep
from tests.driver.watching import standing
from tests.runtime.ray.processes import actor_processes, assert_no_actor_is_left
from tests.runtime.ray.unopened import OPENED, guarded
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, policies, small_run, small_spec, without_times

pytestmark = pytest.mark.usefixtures("ray_session")

# -- a run, and what was seen of it ---------------------------------------------------------------------------------

BUSY = {
    "hunters": Policy(replace(SMALL_PPO, batch_agent_steps=50, minibatch_agent_steps=10, epochs=40), SMALL),
    "prey": Policy(
        replace(SMALL_DQN, train_every_agent_steps=4, prioritized=True), SMALL, PlacementOverrides(replay="own")
    ),
}
"""Learners that are busy most of the time, one of them with a replay apart."""


@dataclass(frozen=True)
class Sent:
    """Weights that a worker was sent with a collect."""

    worker: int
    policy: str
    version: int
    flat: Any


@dataclass(frozen=True)
class Watched:
    """A run during which no rows could be unpickled on the driver."""

    result: Result
    rows_opened: int
    asked: frozenset[tuple[str, int]]
    sent: list[Sent]


@pytest.fixture(scope="module")
def watched(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """One training run."""
    asked: set[tuple[str, int]] = set()
    sent: list[Sent] = []
    real = RemoteWorker.unsent

    def note(self: RemoteWorker, weights: Mapping[str, Weights]) -> dict[str, Weights]:
        asked.update((name, published.version) for name, published in weights.items())
        new = real(self, weights)
        sent.extend(Sent(self.number, name, found.version, found.flat) for name, found in new.items())
        return new

    experiment = small_run(
        "ray", policies=BUSY, evaluation=Evaluation(600, 2, opponents=("random",)), log=Log(400, "none", trace=True)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteWorker, "unsent", note)
        guard = guarded(patch)
        result = train(experiment, tmp_path_factory.mktemp("watched"))
    return Watched(result, guard.opened, frozenset(asked), sent)


def test_the_driver_never_deserializes_rows(watched: Watched) -> None:
    assert watched.rows_opened == 0
    for name in watched.result.metrics["policies"]:
        tally = standing(watched.result.metrics, name)
        assert tally["agent_steps_trained"] > 0
        assert tally["eval_episodes"] == 2
        assert tally["eval_against"] == {"random": tally["eval_return_mean"]}


def test_the_ratio_is_exact(watched: Watched) -> None:
    prey = standing(watched.result.metrics, "prey")
    assert prey["updates"] == (prey["agent_steps_sampled"] - 100) // 4
    assert prey["version"] <= prey["updates"] // 3


def test_workers_are_sent_weights_only_when_they_are_new(watched: Watched) -> None:
    keys = [(one.worker, one.policy, one.version) for one in watched.sent]
    assert len(keys) == len(set(keys)), "a worker was sent weights that it had"
    assert {(policy, version) for _, policy, version in keys} == watched.asked
    for worker in (0, 1):
        for policy in ("hunters", "prey"):
            versions = [version for number, name, version in keys if (number, name) == (worker, policy)]
            assert versions[0] == 0
            assert all(earlier < later for earlier, later in pairwise(versions))
            assert len(versions) > 5


def test_a_version_is_one_object_whoever_fetches_it(watched: Watched) -> None:
    objects: dict[tuple[str, int], set[Any]] = {}
    for one in watched.sent:
        assert isinstance(one.flat, ray.ObjectRef)
        objects.setdefault((one.policy, one.version), set()).add(one.flat)
    assert all(len(found) == 1 for found in objects.values())
    assert len({ref for found in objects.values() for ref in found}) == len(objects)


def test_learners_learn_at_the_same_time(watched: Watched) -> None:
    events = read_trace(watched.result.run_dir / TRACE)
    spans: dict[str, list[tuple[float, float]]] = {"hunters": [], "prey": []}
    for event in events:
        if event["ph"] == "X" and event["name"] == "Learn":
            spans[event["cat"].removeprefix("plan ")].append((event["ts"], event["ts"] + event["dur"]))
    assert len(spans["hunters"]) >= 10
    assert overlap_s(spans["hunters"], spans["prey"]) > 0


# -- the same as inline -----------------------------------------------------------------------------------------------


def test_on_policy_learning_is_the_same_as_inline(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "policies": policies(hunters=SMALL_PPO, prey=Random()),
        "evaluation": Evaluation(500, 3),
        "rollouts": Rollouts(num_workers=1, fragment_env_steps=80),
    }
    records = []
    for experiment in (small_run("inline", **changes), small_run("ray", **changes)):
        where = tmp_path / experiment.runtime.name
        train(experiment, where)
        lines = (where / "metrics.jsonl").read_text().splitlines()
        reports = [without_times(json.loads(line)) for line in lines]
        records.append([{key: value for key, value in report.items() if key != "object_store"} for report in reports])
    assert len(records[0]) >= 3
    assert records[0] == records[1]


def test_overlapping_rounds_are_collected_while_their_learner_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Update] = []
    updated = LearnerTotals.updated

    def note(tally: LearnerTotals, update: Update) -> None:
        seen.append(update)
        updated(tally, update)

    monkeypatch.setattr(LearnerTotals, "updated", note)
    algorithm = replace(SMALL_PPO, batch_agent_steps=50, minibatch_agent_steps=10, epochs=20, max_staleness=1)
    overlap = Rollouts(num_workers=1, fragment_env_steps=80, pace="overlap")
    result = train(small_run("ray", policies=policies(hunters=algorithm, prey=Random()), rollouts=overlap), tmp_path)
    assert {update.staleness_mean for update in seen} <= {0.0, 1.0}
    assert max(update.staleness_mean for update in seen) == 1.0
    assert sum(update.rows for update in seen) == 20 * result.metrics["stages"]["hunters/Concat"]["rows"]
    assert [update.version for update in seen] == list(range(len(seen)))


BOTH_PLACEMENTS = {
    "hunters": Policy(SMALL_DQN, SMALL),
    "prey": Policy(SMALL_DQN, SMALL, PlacementOverrides(replay="own")),
}


@contextmanager
def started(runtime: Runtime, spec: RunSpec) -> Iterator[RunComponents]:
    try:
        yield runtime.start(spec)
    finally:
        runtime.close()


def collected(parts: RunComponents) -> Round:
    weights = parts.published()

    async def wait() -> Round:
        made = parts.workers.collect(Request(0, weights, {}))
        return made if isinstance(made, Round) else await made

    return asyncio.run(wait())


@dataclass(frozen=True)
class Beginning:
    """The components that a runtime started, and its first round."""

    spec: RunSpec
    runtime: RayRuntime
    parts: RunComponents
    round: Round


@pytest.fixture(scope="module")
def beginning(ray_session: None) -> Iterator[Beginning]:
    """Two DQN policies, one with its replay in the learner's process and one apart; no process may be left."""
    spec, runtime = small_spec(policies=BOTH_PLACEMENTS), RayRuntime()
    assert_no_actor_is_left()
    with started(runtime, spec) as parts:
        assert len(actor_processes()) == 5
        yield Beginning(spec, runtime, parts, collected(parts))
    assert_no_actor_is_left()
    runtime.close()
    assert ray.is_initialized(), "a Ray that the run only joined was ended"


def test_the_guard_works(beginning: Beginning, monkeypatch: pytest.MonkeyPatch) -> None:
    (payload,) = beginning.round.fragments[0].payloads
    guard = guarded(monkeypatch)
    with pytest.raises(Exception, match=OPENED):
        ray.get(payload)
    assert guard.opened == 1


def test_a_round_has_one_reference_for_each_worker_and_policy_and_the_rows_of_the_inline_one(
    beginning: Beginning,
) -> None:
    with started(InlineRuntime(), beginning.spec) as parts:
        inline = collected(parts)
    refs = [ref for fragment in beginning.round.fragments for ref in fragment.payloads]
    assert len(refs) == len(set(refs)) == 4
    for found, wanted in zip(beginning.round.fragments, inline.fragments, strict=True):
        assert replace(found, payloads=()) == replace(wanted, payloads=())
        for ref, expected in zip(found.payloads, wanted.payloads, strict=True):
            batch = ray.get(ref)
            for mine, theirs in ((batch.columns, expected.columns), (batch.segments, expected.segments)):
                assert mine.keys() == theirs.keys()
                for name, column in theirs.items():
                    np.testing.assert_array_equal(mine[name], column)


def test_the_plan_is_the_same_as_inline(beginning: Beginning) -> None:
    experiment = small_run(policies=BOTH_PLACEMENTS)

    def keeps(round: Round) -> Round:
        return round

    with started(InlineRuntime(), beginning.spec) as parts:
        inline = build_plan(experiment, beginning.spec, parts, RoundHooks(lambda: None, keeps))
    plan = build_plan(experiment, beginning.spec, beginning.parts, RoundHooks(lambda: None, keeps))
    plan.check()
    assert str(plan) == str(inline)
    assert plan.mermaid() == inline.mermaid()
    drawn = drawn_plan(experiment, beginning.spec)
    drawn.check()
    assert str(drawn).splitlines()[2:] == str(plan).splitlines()[2:]


def called(place: Any, calls: list[StageCall], items: list[Any]) -> Outcome:
    """One call of neighboring stages at their place."""

    async def wait() -> Outcome:
        found: Outcome = await place.prepare(calls)(items)
        return found

    return asyncio.run(wait())


@pytest.mark.parametrize("policy", ["hunters", "prey"])
def test_a_replay_gives_the_learner_the_same_rows_wherever_it_lives(beginning: Beginning, policy: str) -> None:
    spec, parts = beginning.spec.learners[policy], beginning.parts
    handle, remote_learner = parts.replays[policy], parts.learners[policy]
    replay, learner = spec.replay(), spec.learner()
    fragments = [fragment for fragment in beginning.round.fragments if fragment.policy == policy]
    terms = (SMALL_DQN.n_step, SMALL_DQN.discount)
    stored = [stage_call(NStep(*terms), handle), stage_call(Insert(), handle)]
    inserted = called(handle.place, stored, fragments).outputs
    batches = [ray.get(ref) for fragment in fragments for ref in fragment.payloads]
    assert inserted == [replay.insert(NStep(*terms)(batch)) for batch in batches]
    drawn = called(handle.place, [stage_call(Draw(16), handle, is_source=True)], [None, None]).outputs
    updates = called(remote_learner.place, [stage_call(Learn(), remote_learner)], list(drawn)).outputs
    for packed, update in zip(drawn, updates, strict=True):
        expected = replay.draw(16)
        (rows,) = [ray.get(ref) for ref in packed.payloads]
        assert packed.rows == 16
        np.testing.assert_array_equal(rows.row_id, expected.row_id)
        np.testing.assert_array_equal(rows.obs, expected.obs)
        np.testing.assert_array_equal(rows.next_obs, expected.next_obs)
        own = learner.update(expected)
        assert (update.rows, update.updates, update.loss) == (own.rows, own.updates, own.loss)
        np.testing.assert_array_equal(update.priorities, own.priorities)
    kept: Any = remote_learner
    state = from_bytes(memoryview(ray.get(kept.actor.kept_learner.remote(kept.key))))
    np.testing.assert_array_equal(state["vector"], learner.state()["vector"])
