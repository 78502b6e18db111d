"""Ctrl-C and SIGTERM: what is under way is finished first."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from marlflow.base.errors import MarlflowError


class Terminated(KeyboardInterrupt):
    """What SIGTERM ends a run with, where Ctrl-C does it with KeyboardInterrupt."""


class HungUp(KeyboardInterrupt):
    """The same of SIGHUP: the run's terminal was closed."""


_SAYS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
REASONS: Mapping[str, type[KeyboardInterrupt]] = {
    "interrupted": KeyboardInterrupt,
    "terminated": Terminated,
    "hung up": HungUp,
}
"""What a run says it was stopped by, if it was by a signal, and what is then raised where there is more to stop."""
_EXPLAINED_AFTER_S = 5.0


class GracefulShutdown:
    """Whether a signal has asked the run to end: `asked` is None, or one of REASONS; `tell` shows a message.

    `explain` says what keeps the run from finishing, if anything is known.

    What is under way may take `grace_period_s` seconds; then it is as if the user had interrupted again, which ends it.
    `failure` is what `fail` was given.
    """

    def __init__(
        self, grace_period_s: float, tell: Callable[[str], None], explain: Callable[[], Sequence[str]] = tuple
    ) -> None:
        self._grace_s, self._tell, self._explain = grace_period_s, tell, explain
        self._news, self._over = threading.Event(), threading.Event()
        self._heard = list(_SAYS)
        self._is_under_way = self._is_listening = False
        self.asked: str | None = None
        self.failure: MarlflowError | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this holds, SIGINT, SIGTERM and SIGHUP raise at once what REASONS says; from `begin` on they ask first.

        A second SIGINT then raises. SIGHUP is left alone where it is ignored, as under nohup.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in _SAYS}
        self._heard = [number for number in _SAYS if number != signal.SIGHUP or before[number] != signal.SIG_IGN]
        # Made beforehand: a handler may run within any line, also one that holds a lock which starting a thread needs.
        patience = threading.Thread(target=self._be_patient, name="marlflow-grace", daemon=True)
        patience.start()
        self._listen()
        self._is_listening, hook_before = True, sys.unraisablehook
        sys.unraisablehook = functools.partial(_unless_asked_for, hook_before)
        try:
            yield
        finally:
            self._is_listening, sys.unraisablehook = False, hook_before
            self._over.set()
            self._news.set()
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            patience.join()

    def fail(self, failure: MarlflowError) -> None:
        """Ends what is under way at once, from any thread: if `listening`, the main thread gets KeyboardInterrupt."""
        self.failure = failure
        if self._is_listening:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def begin(self) -> None:
        """From now on there is something to finish. Raises what a signal has asked for while the run started.

        That was raised before, but a callback or a destructor, in which Python drops exceptions, may have been running.
        """
        self._is_under_way = True
        if threading.current_thread() is threading.main_thread():
            self._listen()  # again: Ray's C++ takes SIGTERM when it starts, and would abort the process
        if self.asked is not None:
            raise REASONS[self.asked]

    def _listen(self) -> None:
        for number in self._heard:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.failure is not None:
            raise KeyboardInterrupt
        first = self.asked is None
        if first:
            self.asked = _SAYS[signal.Signals(number)]
        if first and self._is_under_way:
            self._news.set()
        elif number == signal.SIGINT or not self._is_under_way:  # another SIGTERM asks for nothing new
            raise REASONS[self.asked or ""]

    def _be_patient(self) -> None:
        """Says what happens, not from the handler, which may have interrupted just that; then ends it after a while."""
        self._news.wait()
        if not self._over.is_set():
            self._tell("finishing this round; interrupt again to stop at once")
        # What hangs is known after a few seconds.
        for pause_s in (0.0, min(_EXPLAINED_AFTER_S, self._grace_s)):
            if self._over.wait(pause_s) or self._explained():
                break
        if not self._over.wait(self._grace_s - pause_s):
            os.kill(os.getpid(), signal.SIGINT)

    def _explained(self) -> bool:
        reasons = self._explain()
        for reason in reasons:
            self._tell(reason)
        return bool(reasons)


def _unless_asked_for(hook: Callable[[Any], object], dropped: Any) -> None:
    """Passes an exception that Python dropped on to `hook`, but not that of a signal: `begin` raises it again."""
    if not (isinstance(dropped.exc_type, type) and issubclass(dropped.exc_type, KeyboardInterrupt)):
        hook(dropped)
