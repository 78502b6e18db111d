"""The copies of an environment in one worker: stepped under a watchdog's eye, and opened anew when one breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from marlflow.base.batch import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.env import Turn, Window, open_window
from marlflow.rollout.closing import close_window
from marlflow.rollout.faults import FaultLog
from marlflow.rollout.fragment import Fault
from marlflow.rollout.watchdog import Overdue, Playing, Watchdog

_T = TypeVar("_T")


class EnvPool:
    """`numbers` are the copies', over all workers; `make_env` makes the environment of one.

    `states` has each copy's global state, if somebody `sees_state`.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        make_env: Callable[[], Any],
        watchdog: Watchdog,
        faults: FaultLog,
        sees_state: bool = False,
    ) -> None:
        self.numbers, self._make_env = [int(number) for number in numbers], make_env
        self.watchdog, self.faults, self._sees_state = watchdog, faults, sees_state
        with watchdog.on_guard():
            self.windows = [self._opened(number) for number in self.numbers]
        self.states: list[Array | None] = [None] * len(self.numbers)
        self.seeds = [0] * len(self.numbers)  # what each copy was reset with last
        self._vanished_before = 0

    @property
    def vanished(self) -> int:
        """How many agents vanished unmarked so far."""
        return self._vanished_before + sum(window.vanished for window in self.windows)

    def act(self, index: int, actions: Sequence[Any]) -> Turn:
        """One env step of a copy; raises EnvironmentFailed."""
        # Written out, for this is done for every env step; `_watched` is for what is rare.
        window, watchdog = self.windows[index], self.watchdog
        watchdog.begun += 1
        watchdog.playing, watchdog.doing = window, "step()"
        try:
            try:
                watchdog.inside = True
                turn = window.act(actions)
                if self._sees_state:
                    self.states[index] = window.state()
            finally:
                watchdog.inside = False
        except Overdue as overdue:
            raise watchdog.hung(window.where(), "step()", overdue) from None
        return turn

    def reset(self, index: int, seed: int, task: int | None = None) -> Turn:
        """Begins an episode in a copy, of the task of this number if there is one; raises EnvironmentFailed."""
        self.seeds[index] = seed
        window = self.windows[index]

        def begun() -> Turn:
            turn = window.reset(seed, task)
            if self._sees_state:
                self.states[index] = window.state()
            return turn

        return self._watched(begun, window)

    def replace(self, index: int, failure: EnvironmentFailed, rows_lost: int) -> None:
        """A fresh copy instead of one whose episode broke by `failure`, which is counted.

        Raises EnvironmentFailed if too many fresh ones cannot be opened.
        """
        broken, number = self.windows[index], self.numbers[index]
        self._vanished_before += broken.vanished
        self.faults.add(failure, failure.reason, rows_lost)
        self._close(broken)
        while True:
            try:
                self.windows[index] = self._opened(number)
                return
            except EnvironmentFailed as again:
                self.faults.tolerate(again)
                self.faults.add(again, again.reason, 0)

    def reopen(self, index: int) -> None:
        """A fresh copy instead of one whose environment failed where that is no fault of this run."""
        broken = self.windows[index]
        self._vanished_before += broken.vanished
        self._close(broken)
        self.windows[index] = self._opened(self.numbers[index])

    def _opened(self, number: int) -> Window:
        watchdog, opening = self.watchdog, _Opening(number)
        watchdog.begun += 1
        watchdog.playing, watchdog.doing, watchdog.loading = opening, "making the environment", True
        try:
            env = self._make_env()  # which may load for longer than a step may take
        finally:
            watchdog.loading = False
        return self._watched(lambda: open_window(env, number), opening)

    def _watched(self, call: Callable[[], _T], playing: Playing) -> _T:
        """Calls `call`, which resets the environment `playing`."""
        watchdog = self.watchdog
        watchdog.begun += 1
        watchdog.playing, watchdog.doing = playing, "reset()"
        try:
            try:
                watchdog.inside = True
                return call()
            finally:
                watchdog.inside = False
        except Overdue as overdue:
            raise watchdog.hung(playing.where(), "reset()", overdue) from None

    def _close(self, broken: Window) -> None:
        """Closes one of which a fresh copy takes the place; that it cannot be is a fault of its own."""
        if (fault := close_window(broken, self.watchdog.timeout_s)) is not None:
            self.faults.report(fault)

    def close(self, deadline_s: float) -> list[Fault]:
        """Closes all of them, until `deadline_s` of time.perf_counter; returns what went wrong."""
        found = [close_window(window, deadline_s - perf_counter()) for window in self.windows]
        return [fault for fault in found if fault is not None]


@dataclass(frozen=True, slots=True)
class _Opening:
    """An environment that is not there yet: the copy of this number."""

    number: int

    def where(self) -> str:
        return f"copy {self.number}, at its opening"

    def name(self) -> str:
        return f"copy {self.number}"
