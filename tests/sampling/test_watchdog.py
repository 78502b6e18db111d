from __future__ import annotations

import contextlib
import faulthandler
import gc
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Discrete

import marlflow
from marlflow.base.errors import ConfigInvalid, EnvironmentHung
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.policy.scripted import RandomActor
from marlflow.sampling.watchdog import Watchdog
from tests.sampling.workers import lone_worker

TIMEOUT_S = 0.2


class Stuck(CartPoleTeam):
    """Never comes back from `doing`, in the episodes whose seeds are odd; swallows every exception that it can."""

    doing = "step"
    how = "spinning"

    def reset(self, seed=None, options=None):
        self.hangs = bool(seed % 2)
        if self.hangs and self.doing == "reset":
            self.hang()
        return super().reset(seed, options)

    def step(self, actions):
        if self.hangs and self.doing == "step" and self._cycles == 2:
            self.hang()
        return super().step(actions)

    def hang(self):
        while True:
            with contextlib.suppress(Exception):
                if self.how == "sleeping":
                    time.sleep(1000)


def worker(make_env, **limits):
    return lone_worker(make_env, None, (0, 1), seed=3, **limits)


def variant(doing, how):
    return type("Stuck", (Stuck,), {"doing": doing, "how": how})


@pytest.mark.parametrize("how", ["spinning", "sleeping"])
@pytest.mark.parametrize("doing", ["step", "reset"])
def test_an_environment_that_hangs_is_named(doing, how):
    hanging = worker(variant(doing, how), watchdog=Watchdog(TIMEOUT_S))
    with pytest.raises(EnvironmentHung, match=rf"{doing}\(\) took longer than env.step_timeout_s \(0.2 s\)") as caught:
        hanging.collect(2000)
    assert "environment " in caught.value.where
    assert f"env step {3 if doing == 'step' else 0}" in caught.value.where
    assert "in hang" in caught.value.user_traceback
    assert f"{Path(marlflow.__file__).parent}/" not in caught.value.user_traceback


@pytest.mark.parametrize("doing", ["step", "reset"])
def test_hung_episodes_are_given_up_and_the_others_go_on(doing):
    going = worker(variant(doing, "sleeping"), watchdog=Watchdog(TIMEOUT_S), tolerated_faults=1000)
    faults, episodes = [], []
    while len(episodes) < 5:
        receipt, batches = going.collect(30)
        faults += receipt.faults
        episodes += receipt.episodes
        assert np.isfinite(batches["all"]["obs"]).all()
    assert faults
    assert {fault.kind for fault in faults} == {"env_hangs"}


def test_time_that_the_policy_takes_is_not_the_environments():
    class Slow(RandomActor):
        def act(self, obs, action_mask, memory, mode, generator):
            time.sleep(2 * TIMEOUT_S)
            return super().act(obs, action_mask, memory, mode, generator)

    calm = lone_worker(CartPoleTeam, Slow(Discrete(2)), watchdog=Watchdog(TIMEOUT_S))
    receipt, _ = calm.collect(2)
    assert receipt.env_steps == 2


def test_afterwards_the_alarm_is_as_it_was():
    handler = signal.getsignal(signal.SIGALRM)
    worker(CartPoleTeam, watchdog=Watchdog(TIMEOUT_S)).collect(3)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def spin(seconds):
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


class Collecting(CartPoleTeam):
    """Never comes back from its second env step, and collects garbage most of the time."""

    def step(self, actions):
        while self._cycles == 1:
            spin(0.001)
            gc.collect(0)
        return super().step(actions)


def test_no_exception_is_lost_in_a_callback_of_the_garbage_collector(monkeypatch):
    def slow_callback(phase, info):
        spin(0.002)

    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    gc.callbacks.append(slow_callback)
    try:
        hanging = worker(Collecting, watchdog=Watchdog(TIMEOUT_S))
        for _ in range(3):
            with pytest.raises(EnvironmentHung):
                hanging.collect(64)
    finally:
        gc.callbacks.remove(slow_callback)
    assert not lost


def test_a_timeout_that_cannot_be_kept_is_refused():
    caught = []

    def elsewhere():
        try:
            worker(CartPoleTeam, watchdog=Watchdog(TIMEOUT_S))
        except ConfigInvalid as error:
            caught.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in caught[0]


IN_C = """
from collections import deque
from itertools import repeat
from marlflow.sampling.watchdog import Watchdog

def in_a_computation_of_c():
    deque(repeat(0), maxlen=0)

watchdog = Watchdog(0.1, end_process_after_s=0.3)
with watchdog.on_guard():
    watchdog.begun, watchdog.inside = 1, True
    in_a_computation_of_c()
"""


def test_a_computation_that_nothing_can_interrupt_ends_its_process():
    ended = subprocess.run([sys.executable, "-c", IN_C], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "in in_a_computation_of_c" in ended.stderr


def test_a_process_whose_environments_move_on_does_not_end(monkeypatch):
    # The timer itself would end this process if the machine left it waiting for longer than the timeout.
    armed = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda after_s, exit, file: armed.append((after_s, exit)))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: armed.append("cancelled"))
    patient = Watchdog(TIMEOUT_S, end_process_after_s=TIMEOUT_S)
    with patient.on_guard():
        while len(armed) < 8:  # it is put off again and again, until the guard ends
            patient.begun += 1
            patient.inside = True
    assert set(armed[:-1]) == {(TIMEOUT_S, True)}
    assert armed[-1] == "cancelled"
