from __future__ import annotations

import pickle
import time
from time import perf_counter

import pytest

from marlflow.base.errors import EnvironmentHung
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.sampling import watchdog as module
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.watchdog import Deadline, Watchdog
from tests.sampling.workers import lone_worker


def worker(make_env, watchdog, env_indices=(0, 1)):
    return lone_worker(make_env, None, env_indices, seed=3, watchdog=watchdog)


def watchdog_until(left_s, grace_period_s=60.0):
    watchdog = Watchdog(None)
    watchdog.deadline = Deadline.after(left_s, grace_period_s)
    return watchdog


def test_a_collect_ends_with_the_env_step_in_which_the_deadline_passes():
    receipt, batches = worker(CartPoleTeam, watchdog_until(-1.0)).collect(1_000)
    assert receipt.env_steps == 2  # one of each environment: a collect that makes nothing would be asked for again
    assert batches["all"].rows == receipt.agent_steps == 8


def test_the_next_collect_goes_on_where_it_ended():
    watchdog = watchdog_until(-1.0)
    cut, whole = worker(CartPoleTeam, watchdog), worker(CartPoleTeam, Watchdog(None))
    rows = [cut.collect(1_000)[1]["all"]]
    watchdog.deadline = None
    rows.append(cut.collect(9)[1]["all"])
    assert sum(batch.rows for batch in rows) == whole.collect(10)[1]["all"].rows


def test_of_an_evaluation_that_the_deadline_ends_it_is_said_so():
    evaluated = worker(CartPoleTeam, watchdog_until(-1.0)).evaluate(EvaluationRequest(range(5)))
    assert (evaluated.episodes, evaluated.was_cut) == ((), True)
    evaluated = worker(CartPoleTeam, watchdog_until(3_600.0)).evaluate(EvaluationRequest(range(5)))
    assert (len(evaluated.episodes), evaluated.was_cut) == (5, False)


class Stuck(CartPoleTeam):
    def step(self, actions):
        while True:
            time.sleep(1_000)


def test_a_step_that_hangs_is_given_up_when_the_deadline_has_passed():
    hanging = worker(Stuck, watchdog_until(-1.0, grace_period_s=0.3))
    with pytest.raises(EnvironmentHung, match=r"step\(\) was abandoned after .* s: stop.time_s was over") as caught:
        hanging.collect(1)
    assert "env step 1" in caught.value.where
    assert "in step" in caught.value.user_traceback


def test_a_step_may_take_its_grace_after_the_deadline():
    class Slow(CartPoleTeam):
        def step(self, actions):
            time.sleep(0.3)
            return super().step(actions)

    receipt, _ = worker(Slow, watchdog_until(-1.0), env_indices=(0,)).collect(5)
    assert receipt.env_steps == 1


@pytest.mark.parametrize(
    ("began_s", "now_s", "given_up"),
    [
        (50.0, 99.0, False),  # there still is time
        (50.0, 100.0, True),  # it had its grace before
        (95.0, 104.0, False),
        (95.0, 105.0, True),
        (109.0, 109.5, False),  # others have taken most of the grace
        (109.0, 110.0, True),
    ],
)
def test_a_call_has_its_grace_and_all_together_have_no_more_after_the_deadline(began_s, now_s, given_up):
    assert Deadline(at_s=100.0, grace_period_s=10.0).interrupts(began_s, now_s) == given_up


def test_elsewhere_a_deadline_is_as_many_seconds_away(monkeypatch):
    sent = pickle.dumps(Deadline.after(100.0, 5.0))
    monkeypatch.setattr(module, "perf_counter", lambda: perf_counter() + 1e6)  # another machine's clock
    there = pickle.loads(sent)  # noqa: S301  our own
    assert there.at_s - module.perf_counter() == pytest.approx(100.0, abs=60.0)
    assert (there.grace_period_s, there.has_passed) == (5.0, False)
