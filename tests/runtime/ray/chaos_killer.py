"""Kills a run's processes, one after the other, at moments that a seed chooses."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil


class Killer:
    """Kills the next of `victims`, which are parts (`worker`, `learner-x`, ...), within `apart_s` seconds of the last.

    A victim is a process that has done something as that part, so that no process is killed before it is back. When all
    are killed, and each of the `processes` of each part has done something again, `all_back` is called.
    """

    def __init__(
        self,
        folder: Path,
        victims: Sequence[str],
        processes: Mapping[str, int],
        all_back: Callable[[], None],
        apart_s: float,
        seed: int,
    ) -> None:
        self._folder, self._left, self._processes, self._all_back = folder, list(victims), processes, all_back
        self._apart_s = apart_s
        self._random = random.Random(seed)
        self._next: threading.Timer | None = None
        self.killed: list[tuple[str, int]] = []

    def round_begins(self) -> None:
        """Kills the next victim some time later, in the middle of the run's work."""
        if self._next is not None and self._next.is_alive():
            return
        if not self._left:
            if all(len(self._at_work(part)) == count for part, count in self._processes.items()):
                self._all_back()
            return
        self._next = threading.Timer(self._random.uniform(0.0, self._apart_s), self._kill)
        self._next.start()

    def stop(self) -> None:
        """No further process is killed."""
        self._left.clear()
        if self._next is not None:
            self._next.join()

    def _kill(self) -> None:
        part = next(iter(self._left), "")
        if part and (at_work := self._at_work(part)):
            victim = self._random.choice(at_work)
            os.kill(victim, signal.SIGKILL)
            self.killed.append((part, victim))
            del self._left[:1]

    def _at_work(self, part: str) -> list[int]:
        dead = {process for _, process in self.killed} | {os.getpid()}
        found = [int(path.suffix[1:]) for path in self._folder.glob(f"{part}.*") if _has_worked(path)]
        return sorted(process for process in found if process not in dead and psutil.pid_exists(process))


def _has_worked(journal: Path) -> bool:
    """Whether it did more than to begin: a learner that comes back publishes, a replay says where it begins."""
    with journal.open() as lines:
        return any("begins" not in line and "published" not in line for line in lines)
