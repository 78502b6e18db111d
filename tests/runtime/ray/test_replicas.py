"""Learners with a replica on every rollout worker: as inline number for number, and none is ever out of step.

Starting processes is what takes the time, so most tests use one run, whatever died in it before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.batches.items import Weights
from marlflow.runtime.ray.remote_worker import RemoteWorker
from tests.driver.kept_runs import kept
from tests.driver.watching import standing
from tests.runtime.driven_runs import DrivenRun
from tests.runtime.ray.deadly import DeadlyStage, kill
from tests.runtime.ray.lossy import Lossy, lossy_run
from tests.runtime.small_runs import policies, small_run, without_times

pytestmark = pytest.mark.usefixtures("ray_session")

SMALL_DDPPO = mf.DDPPO(batch_agent_steps=100, epochs=2, minibatch_agent_steps=40)


def odd_copies_late(episode: Any, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
    """Seats `team` in odd environments from their third episode on: until then a worker has none of its rows.

    In trials before a run, which are of env -2, it seats both.
    """
    is_late = episode.episode < 2 and (episode.env % 2 or episode.env < 0)
    return dict.fromkeys(agents, "nobody" if is_late else "team")


def replicas_of(run: DrivenRun, policy: str) -> list[Any]:
    """The state of each."""
    hosted = run.parts.learners[policy].place.host
    return [from_bytes(kept.tobytes()) for kept in ray.get([a.kept_learner.remote(hosted.key) for a in hosted.actors])]


def assert_in_step(replicas: Sequence[Mapping[str, Any]]) -> None:
    """Bit for bit."""
    for other in replicas[1:]:
        for name, value in replicas[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_replicas_learn_what_one_does_inline_and_act_without_being_sent_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    real = RemoteWorker.unsent

    def note(self: RemoteWorker, weights: Mapping[str, Weights]) -> dict[str, Weights]:
        new = real(self, weights)
        sent.extend(found.version for found in new.values())
        return new

    monkeypatch.setattr(RemoteWorker, "unsent", note)
    found = {}
    for runtime in ("ray", "inline"):
        experiment = small_run(
            runtime,  # type: ignore[arg-type]
            560,
            policies=policies(team=SMALL_DDPPO, nobody=mf.Random()),
            mapping=odd_copies_late,
        )
        result = mf.train(experiment, tmp_path / runtime)
        found[runtime] = (kept(tmp_path / runtime)["learner.team"], result.metrics)
    (learner, metrics), (expected, others) = found["ray"], found["inline"]
    np.testing.assert_allclose(learner["vector"], expected["vector"], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(learner["generator"], expected["generator"])
    team, other = standing(metrics, "team"), standing(others, "team")
    assert team["updates"] > 10
    assert team["loss"] == pytest.approx(other["loss"], rel=1e-3, abs=1e-5)
    assert without_times({**team, "loss": {}}) == without_times({**other, "loss": {}})
    assert sent == [0, 0]  # the first round's, to each of the two workers
    for stage in ("Shards", "DropStale", "Advantages", "NormalizeShards", "Learn", "Publish"):
        one, same = (each["stages"][f"team/{stage}"] for each in (metrics, others))
        assert (one["items"], one["rows"]) == (same["items"], same["rows"]), stage


# -- processes that die -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeadlyDDPPO(mf.DDPPO):
    """DD-PPO in which one replica ends after it has learned, and before it has published."""

    marker: Path = Path()

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replays: Sequence[mf.Replay] = ()) -> mf.Plan:
        plan = super().plan(experience, learner, replays)
        return replace(plan, output=plan.output.then(DeadlyStage(self.marker), at=learner))


@pytest.fixture(scope="module")
def lossy(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lossy]:
    """One run: DD-PPO beside DQN; two workers."""
    settings = {name: getattr(SMALL_DDPPO, name) for name in ("batch_agent_steps", "epochs", "minibatch_agent_steps")}
    with lossy_run(tmp_path_factory.mktemp("lossy"), DeadlyDDPPO, **settings) as made:
        made.run.play(4)
        yield made


def updates_of(run: DrivenRun, first: int = 0) -> int:
    """Optimizer steps of all updates from the first on."""
    return sum(update.updates for update in run.updates["hunters"][first:])


def play_until_all_learn(run: DrivenRun) -> None:
    """Rounds until an update: it waits for every replacement, and rounds do not, whose rows may not fill a batch."""
    learned = len(run.updates["hunters"])
    run.play_until(lambda: len(run.updates["hunters"]) > learned)


def test_two_policies_learn_each_from_its_own_rows(lossy: Lossy) -> None:
    run = lossy.run
    trained = sum(update.rows for update in run.updates["hunters"])
    made = sum(f.rows for round in run.rounds for f in round.fragments if f.policy == "hunters")
    assert trained == 2 * made > 0
    assert run.updates["prey"]
    assert_in_step(replicas_of(run, "hunters"))


def test_a_worker_that_dies_in_a_round_costs_nothing_that_was_learned(lossy: Lossy) -> None:
    run = lossy.run
    lossy.new_faults()
    before, rounds = lossy.kept(), len(run.updates["hunters"])
    lossy.in_step.touch()
    run.play(12)
    (fault,) = lossy.new_faults()
    assert (fault.kind, fault.rows_lost) == ("workers_lost", 0)
    replicas = replicas_of(run, "hunters")
    assert_in_step(replicas)
    assert replicas[0]["updates"] == before["updates"] + updates_of(run, rounds)
    # No version is passed over. The first of these rounds has the rows of one worker, too few for a batch.
    assert {later - earlier for earlier, later in pairwise(run.versions["hunters"])} == {0, 1}
    assert {receipt.worker for receipt in run.rounds[-1].receipts} == {0, 1}
    assert not any(update.stale_rows_dropped for update in run.updates["hunters"])


def test_a_worker_that_dies_while_all_learn_costs_that_update(lossy: Lossy) -> None:
    run = lossy.run
    lossy.new_faults()
    before, rounds, version = lossy.kept(), len(run.updates["hunters"]), run.versions["hunters"][-1]
    lossy.in_stage.touch()
    run.play(4)
    lost, gone = sorted(lossy.new_faults(), key=lambda fault: fault.kind)
    assert (lost.kind, lost.where, gone.kind) == ("learners_lost", "learner hunters", "workers_lost")
    assert lost.rows_lost > 0
    lossy.assert_versions_never_repeat()
    assert run.updates["hunters"][rounds].version > version + 1
    replicas = replicas_of(run, "hunters")
    assert_in_step(replicas)
    # The one that was left had learned from what was lost; nobody can say that it had not.
    assert replicas[0]["updates"] > before["updates"] + updates_of(run, rounds)


def test_while_a_worker_dies_nothing_is_kept_and_then_what_another_knows(lossy: Lossy) -> None:
    run = lossy.run
    lossy.new_faults()
    before = replicas_of(run, "hunters")[0]
    kill(run.parts.workers.all[0].actor)
    with pytest.raises(mf.ActorLost, match="rollout worker 0 died"):
        lossy.kept()
    assert [fault.kind for fault in lossy.new_faults()] == ["workers_lost"]
    assert_in_step([before, lossy.kept()])
    play_until_all_learn(run)
    assert_in_step(replicas_of(run, "hunters"))


def test_if_all_workers_die_they_go_on_as_they_were_kept_under_a_new_version(lossy: Lossy) -> None:
    run = lossy.run
    before = lossy.kept()
    lossy.new_faults()
    run.play(2)
    rounds, version = len(run.updates["hunters"]), run.parts.published()["hunters"].version
    for worker in run.parts.workers.all:
        kill(worker.actor)
    play_until_all_learn(run)
    assert [fault.kind for fault in lossy.new_faults()] == ["workers_lost"] * 2
    lossy.assert_versions_never_repeat()
    replicas = replicas_of(run, "hunters")
    assert_in_step(replicas)
    assert replicas[0]["updates"] == before["updates"] + updates_of(run, rounds)
    assert replicas[0]["version"] > version + 1
