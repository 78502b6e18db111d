"""The copies of an environment in one worker: stepped under a watchdog's eye, and opened anew when one breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marlflow.base.batch import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.env import Turn, Window
from marlflow.rollout.faults import FaultLog
from marlflow.rollout.watchdog import Overdue, Watchdog


class Copies:
    """`numbers` are the copies', over all workers; `open_copy(number)` opens the window on one.

    `states` has each copy's global state, if somebody `sees_state`.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        open_copy: Callable[[int], Window],
        watchdog: Watchdog,
        faults: FaultLog,
        sees_state: bool = False,
    ) -> None:
        self.numbers, self._open = [int(number) for number in numbers], open_copy
        self.windows = [open_copy(number) for number in self.numbers]
        self.watchdog, self.faults, self._sees_state = watchdog, faults, sees_state
        self.states: list[Array | None] = [None] * len(self.numbers)
        self._vanished_before = 0

    @property
    def vanished(self) -> int:
        """How many agents vanished unmarked so far."""
        return self._vanished_before + sum(window.vanished for window in self.windows)

    def act(self, index: int, actions: Sequence[Any]) -> Turn:
        """One env step of a copy; raises EnvironmentFailed."""
        window, watchdog = self.windows[index], self.watchdog
        watchdog.begun += 1
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

    def reset(self, index: int, seed: int) -> Turn:
        """Begins an episode in a copy; raises EnvironmentFailed."""
        window, watchdog = self.windows[index], self.watchdog
        watchdog.begun += 1
        try:
            try:
                watchdog.inside = True
                turn = window.reset(seed)
                if self._sees_state:
                    self.states[index] = window.state()
            finally:
                watchdog.inside = False
        except Overdue as overdue:
            raise watchdog.hung(window.where(), "reset()", overdue) from None
        return turn

    def replace(self, index: int, failure: EnvironmentFailed, rows_lost: int) -> None:
        """A fresh copy instead of one whose episode broke by `failure`; its faults are counted.

        Raises EnvironmentFailed if that cannot be opened either.
        """
        broken = self.windows[index]
        self._vanished_before += broken.vanished
        reason = failure.reason
        try:
            broken.close()
        except Exception as error:  # noqa: BLE001  a broken environment may be beyond closing: said beside the fault
            reason = f"{reason} (and closing it raised {type(error).__name__}: {error})"
        self.faults.add(failure, reason, rows_lost)
        self.windows[index] = self._open(self.numbers[index])

    def close(self) -> None:
        """Closes all of them."""
        for window in self.windows:
            window.close()
