from __future__ import annotations

import queue
import threading

import pytest

from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.sampling.messages import HangMonitor, StepRunning
from marlflow.sampling.watchdog import Watchdog
from tests.sampling.workers import lone_worker

FIRST_S = 0.02
PATIENCE_S = 60.0


class Waits(CartPoleTeam):
    """Waits for `free` where `waits_in` says, once its environment has been opened."""

    free = threading.Event()
    waits_in = "step"
    made = 0

    def __init__(self) -> None:
        super().__init__(2)
        type(self).made += 1
        if self.waits_in == "making":
            self.free.wait()
        self.resets = 0

    def reset(self, seed=None, options=None):
        self.resets += 1
        if self.waits_in == "reset" and self.resets > 1:
            self.free.wait()
        return super().reset(seed, options)

    def step(self, actions):
        if self.waits_in == "step" and self._cycles == 2:
            self.free.wait()
        return super().step(actions)


@pytest.mark.parametrize(
    ("waits_in", "where"),
    [
        ("step", "environment cartpole_team_v0, env 5, episode seed {seed}, env step 3: step()"),
        ("reset", "environment cartpole_team_v0, env 5, episode seed {seed}, env step 0: reset()"),
        ("making", "env 5, at its opening: making the environment"),
    ],
)
def test_a_call_that_does_not_return_is_named_while_it_runs_and_when_it_has_returned(waits_in, where):
    kind = type("Waits", (Waits,), {"waits_in": waits_in, "free": threading.Event()})
    told: queue.Queue[StepRunning] = queue.Queue()
    watchdog, seeds = Watchdog(None), []

    def play():
        worker = lone_worker(kind, None, [5], seed=3, watchdog=watchdog)
        worker.collect(3)
        seeds.append(worker._envs.seeds[0])

    monitor = HangMonitor({7: watchdog}, told.put, FIRST_S)
    playing = threading.Thread(target=play)
    playing.start()
    first, again = told.get(timeout=PATIENCE_S), told.get(timeout=PATIENCE_S)
    kind.free.set()
    playing.join(PATIENCE_S)
    over = told.get(timeout=PATIENCE_S)
    while not over.is_over:
        over = told.get(timeout=PATIENCE_S)
    monitor.close()
    where = where.format(seed=seeds[0])
    assert [(news.worker, news.where, news.is_over) for news in (first, again, over)] == [
        (7, where, False),
        (7, where, False),
        (7, where, True),
    ]
    assert first.running_s >= FIRST_S
    assert again.running_s >= 2 * FIRST_S


def test_nothing_is_told_of_environments_that_return():
    told = []
    watchdog = Watchdog(None)
    monitor = HangMonitor({0: watchdog}, told.append, PATIENCE_S)
    lone_worker(CartPoleTeam, seed=3, watchdog=watchdog).collect(50)
    monitor.close()
    assert told == []
