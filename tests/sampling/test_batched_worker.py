"""A worker with batched environments returns what one with PettingZoo's versions of them returns, number for number."""

from dataclasses import replace

import numpy as np
import pytest

from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.batches.items import Weights
from marlflow.env import open_adapter
from marlflow.sampling.episodes import RESTARTED_EPISODE
from marlflow.sampling.protocol import EvaluationRequest, Request
from marlflow.sampling.saved_state import ResumeReport, merged, share
from tests.driver.kept_runs import assert_equal
from tests.sampling.batched_cases import CASES
from tests.sampling.row_actors import RememberingRowActor, RowActor
from tests.sampling.workers import rollout_worker, rows_in

TICKS = (1, 7, 40, 3, 90)
NO_TIMES = {"env_s": 0.0, "policy_s": 0.0, "bookkeeping_s": 0.0, "began_s": 0.0}


def worker_of(case, batched, env_indices=range(5), **settings):
    adapter = open_adapter(case.make_env())
    actors = {}
    for agent, policy in case.mapping.items():
        actors[policy] = (RememberingRowActor if policy in case.remember else RowActor)(adapter.action_space(agent))
    adapter.close()
    return rollout_worker(
        case.make_env,
        list(env_indices),
        case.mapping,
        actors,
        seed=3,
        make_batched=case.make_batched if batched else None,
        with_state=case.with_state,
        **{**case.settings, **settings},
    )


def weights_of(case, number):
    policies = sorted(set(case.mapping.values()))
    return {policy: Weights(number, np.array([number + at], np.float32)) for at, policy in enumerate(policies)}


def collected(worker, case, numbers):
    return [worker.collect(TICKS[n % len(TICKS)], Request(weights=weights_of(case, n))) for n in numbers]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_receipts_and_evaluation_equal_those_of_pettingzoo(case):
    batched, one_by_one = worker_of(case, True), worker_of(case, False)
    seen = []
    for ours, theirs in zip(collected(batched, case, range(6)), collected(one_by_one, case, range(6)), strict=True):
        assert replace(ours[0], **NO_TIMES) == replace(theirs[0], **NO_TIMES)
        assert_equal(rows_in(ours[1]), rows_in(theirs[1]))
        seen += ours[0].episodes
    assert len(seen) >= 5, "several episodes have to end"
    request = EvaluationRequest(range(20, 40), weights_of(case, 9))
    assert batched.evaluate(request) == one_by_one.evaluate(request)
    batched.close()
    one_by_one.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_resumed_worker_goes_on_as_if_it_had_not_been_interrupted(case):
    whole, parts = worker_of(case, True), [worker_of(case, True, indices) for indices in ([0, 3], [4, 1, 2])]
    collected(whole, case, range(4))
    for part in parts:
        collected(part, case, range(4))
    tree = from_bytes(to_bytes(merged([part.state() for part in parts])))
    resumed = worker_of(case, True)
    assert resumed.load_state(share(tree, range(5)), 0) == ResumeReport()
    for ours, theirs in zip(collected(resumed, case, range(4, 8)), collected(whole, case, range(4, 8)), strict=True):
        assert replace(ours[0], **NO_TIMES) == replace(theirs[0], **NO_TIMES)
        assert_equal(rows_in(ours[1]), rows_in(theirs[1]))


def test_episodes_restart_where_the_saved_ones_cannot_go_on():
    case = CASES[0]
    batched = worker_of(case, True)
    collected(batched, case, range(4))
    tree = from_bytes(to_bytes(batched.state()))
    running = [env["running"]["episode"] for env in tree["envs"]]
    for is_batched in (False, True):
        if is_batched:
            del tree["tables"]["snapshot"]
        resumed = worker_of(case, is_batched)
        report = resumed.load_state(tree, 10**6)
        assert report.episodes_restarted == len(running)
        assert report.rows_lost == len(tree["tables"]["open"]["env"])
        # The same seed, under another number.
        episodes = [env["running"]["episode"] for env in resumed.state()["envs"]]
        assert episodes == [episode + RESTARTED_EPISODE for episode in running]
        first = resumed.collect(1, Request(weights=weights_of(case, 1)))[1]["all"]
        again = worker_of(case, False)
        again._episodes.resume_at(dict(enumerate(running)))
        expected = again.collect(1, Request(weights=weights_of(case, 1)))[1]["all"]
        np.testing.assert_array_equal(first["obs"], expected["obs"])
        np.testing.assert_array_equal(first["action"], expected["action"])
