"""Lost processes of a run are replaced and reported, and the run continues; their work is lost once, and counted.

Starting processes is what takes the time, so most tests use one run, whatever died in it before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import ray

from marlflow.base.errors import ActorLost
from marlflow.base.serialization import from_bytes
from marlflow.runtime.ray.handles import FAR_ABOVE
from marlflow.sampling.protocol import EvaluationRequest
from tests.runtime.driven_runs import DrivenRun
from tests.runtime.ray.deadly import DeadlyPPO, kill
from tests.runtime.ray.lossy import Lossy, lossy_run

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture(scope="module")
def lossy(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lossy]:
    """One run: PPO and DQN, whose replay is with its learner; two workers."""
    settings = {"batch_agent_steps": 200, "epochs": 2, "minibatch_agent_steps": 64}
    with lossy_run(tmp_path_factory.mktemp("lossy"), DeadlyPPO, **settings) as made:
        yield made


def rows_of(run: DrivenRun, first_round: int = 0) -> list[tuple[str, int, int, int, int]]:
    """Which rows were delivered: policy, environment, episode, agent and decision of each."""
    found = []
    for round in run.rounds[first_round:]:
        for fragment in round.fragments:
            for batch in ray.get(list(fragment.payloads)):
                columns = (batch[name].tolist() for name in ("env", "episode", "agent", "t_agent"))
                found += [(fragment.policy, *row) for row in zip(*columns, strict=True)]
    return found


def test_a_worker_that_dies_in_a_round_is_replaced_and_no_row_comes_twice(lossy: Lossy) -> None:
    run = lossy.run
    lossy.all_back()
    run.play(3)
    first = len(run.rounds)
    begun = [dict(receipt.next_episodes) for receipt in run.rounds[-1].receipts]
    lossy.in_step.touch()
    run.play(30, {25: lossy.all_back})
    (fault,) = lossy.new_faults()
    assert (fault.kind, fault.rows_lost) == ("workers_lost", 0)
    number = int(fault.where.removeprefix("rollout worker "))
    made = run.rounds[first:]
    receipts = [{receipt.worker: receipt for receipt in round.receipts} for round in made]
    assert any(set(found) == {1 - number} for found in receipts)
    assert set(receipts[-1]) == {0, 1}
    for round in made:
        assert [round.fragments[-1].closes_round, round.fragments[0].closes_round] == [True, len(round.receipts) == 1]
        assert {fragment.policy for fragment in round.fragments if fragment.closes_round} == {"hunters", "prey"}
    assert len(rows := rows_of(run)) == len(set(rows))
    died = next(at for at, found in enumerate(receipts) if number not in found)
    back = next(at for at, found in enumerate(receipts) if number in found and at > died)
    since = {
        (env_index, episode) for _, env_index, episode, *_ in rows_of(run, first + back) if env_index % 2 == number
    }
    last = dict(receipts[died - 1][number].next_episodes) if died else begun[number]
    assert {env_index: min(episode for own, episode in since if own == env_index) for env_index in last} == last
    for name, policy in receipts[back][number].policies.items():
        assert policy.version == receipts[back][1 - number].policies[name].version == run.versions[name][first + back]


def test_a_learner_that_dies_in_an_update_goes_on_as_it_was_kept_under_a_new_version(lossy: Lossy) -> None:
    run = lossy.run
    lossy.all_back()
    run.play(8)
    kept = lossy.kept()
    run.play(4)
    lossy.new_faults()
    updates, versions = len(run.updates["hunters"]), run.parts.published()["hunters"].version
    lossy.in_stage.touch()
    run.play(12)
    (fault,) = lossy.new_faults()
    assert (fault.kind, fault.where) == ("learners_lost", "learner hunters")
    assert fault.rows_lost > 0
    assert run.dropped("hunters/DeadlyStage") >= 1
    since = run.updates["hunters"][updates:]
    assert since[0].version > versions
    steps = sum(update.updates for update in since)
    assert lossy.kept()["updates"] == kept["updates"] + steps
    lossy.assert_versions_never_repeat()


def test_a_replay_that_dies_comes_back_empty_and_is_filled_before_it_is_drawn_from(lossy: Lossy) -> None:
    run = lossy.run
    lossy.all_back()
    run.play(6)
    lossy.new_faults()
    learner, replay = run.parts.learners["prey"], run.parts.replays["prey"]
    held, version, updates = replay.stored, learner.version, len(run.updates["prey"])
    first = len(run.rounds)
    kill(learner.actor)
    # How soon its successor learns depends on the machine.
    for _ in range(20):
        run.play(12)
        if len(run.updates["prey"]) > updates:
            break
    gone, lost = lossy.new_faults()
    assert (gone.kind, gone.where, gone.rows_lost) == ("learners_lost", "learner prey", 0)
    assert (lost.kind, lost.where) == ("replays_lost", "replay prey")
    inserted = [
        fragment.rows for round in run.rounds[first:] for fragment in round.fragments if fragment.policy == "prey"
    ]
    assert lost.rows_lost + replay.stored == held + sum(inserted)
    since = run.updates["prey"][updates:]
    assert since
    assert min(update.version for update in since) > version
    kept = run.runtime.save({})
    begins, ends = kept.replays["prey"]
    assert (begins % FAR_ABOVE, ends - begins) == (0, replay.stored)
    assert begins >= FAR_ABOVE
    assert f"rows.prey.{begins}-{ends}" in kept.files


def test_while_a_process_dies_nothing_is_kept_and_then_all_is_again(lossy: Lossy) -> None:
    run = lossy.run
    lossy.all_back()
    run.play(1)
    lossy.new_faults()
    version = run.parts.published()["hunters"].version
    kill(run.parts.learners["hunters"].actor)
    kill(run.parts.workers.all[1].actor)
    with pytest.raises(ActorLost, match="learner hunters and rollout worker 1"):
        run.runtime.save({})
    assert [fault.kind for fault in lossy.new_faults()] == ["learners_lost", "workers_lost"]
    assert run.parts.published()["hunters"].version > version
    following = dict(run.parts.workers.all[1].next_episodes)
    files = run.runtime.save({}).files
    envs = {one["env"]: one for one in from_bytes(files["workers"])["envs"]}
    assert set(envs) == {0, 1, 2, 3}
    assert {env_index: envs[env_index]["next_episode"] for env_index in (1, 3)} == following
    run.play(2)


def test_evaluation_is_played_by_those_who_are_there(lossy: Lossy) -> None:
    run = lossy.run
    lossy.all_back()
    weights = run.parts.published()
    whole = asyncio.run(run.parts.workers.evaluate(EvaluationRequest(range(5), weights)))
    lossy.in_step.touch()
    alone = asyncio.run(run.parts.workers.evaluate(EvaluationRequest(range(5), weights)))
    assert alone.episodes == whole.episodes
    assert [fault.kind for fault in lossy.new_faults()][-1] == "workers_lost"
