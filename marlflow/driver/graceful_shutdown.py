"""Graceful shutdown: a signal handler of SIGINT (Ctrl-C), SIGTERM and SIGHUP."""

from __future__ import annotations

import _thread
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
from marlflow.base.signals import ENDING, handled


class Terminated(KeyboardInterrupt):
    """SIGTERM ended the run."""


class HungUp(KeyboardInterrupt):
    """SIGHUP ended the run: its terminal was closed."""


REASON_OF = dict(zip(ENDING, ("interrupted", "terminated", "hung up"), strict=False))
"""The `stopped_by` of a run that a signal ended, by the signal."""
REASONS: Mapping[str, type[KeyboardInterrupt]] = {
    "interrupted": KeyboardInterrupt,
    "terminated": Terminated,
    "hung up": HungUp,
}
"""The `stopped_by` of a run that a signal ended, and the exception that then ends a whole sweep."""
_EXPLAINED_AFTER_S = 5.0


class GracefulShutdown:
    """Lets a first signal request the end of the run; a second SIGINT raises at once.

    `requested` is a key of REASONS, or None. The run then has `grace_period_s` seconds to finish, before the process
    sends itself SIGINT. Soon after a request, a thread calls `on_request`. `explain` returns the reason why the run has
    not finished yet, if known. `failure` is the error passed to `fail`.
    """

    def __init__(
        self,
        grace_period_s: float,
        notify: Callable[[str], None],
        explain: Callable[[], Sequence[str]] = tuple,
        on_request: Callable[[], None] = lambda: None,
    ) -> None:
        self._grace_s = grace_period_s
        self._notify = notify
        self._on_request = on_request
        self._explain = explain
        self._requested_event = threading.Event()
        self._finished_event = threading.Event()
        # Installs the handlers again.
        self._listen: Callable[[], None] = lambda: None
        self._is_running = False
        self._is_listening = False
        self.requested: str | None = None
        self.failure: MarlflowError | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Install the signal handlers in this context, if in the main thread.

        Until `begin` is called, a signal raises its exception at once.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # Started before any signal: the handler may interrupt code that holds a lock which starting a thread needs.
        watcher = threading.Thread(target=self._enforce_grace_period, name="marlflow-grace", daemon=True)
        watcher.start()
        hook_before = sys.unraisablehook
        try:
            with handled(self._on_signal) as self._listen:
                self._is_listening = True
                sys.unraisablehook = functools.partial(_ignore_dropped_interrupts, hook_before)
                try:
                    yield
                finally:
                    self._is_listening = False
                    sys.unraisablehook = hook_before
                    self._finished_event.set()
        finally:
            # Again, because a signal may have raised before.
            self._finished_event.set()
            self._requested_event.set()
            watcher.join()

    def fail(self, failure: MarlflowError) -> None:
        """Interrupt the main thread because of `failure`, from any thread."""
        self.failure = failure
        if self._is_listening:
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                _thread.interrupt_main()

    def begin(self) -> None:
        """Let signals request the end from now on; raise the exception of one that arrived before."""
        self._is_running = True
        if threading.current_thread() is threading.main_thread():
            # Installed again: Ray's C++ takes SIGTERM when it starts, and would abort the process.
            self._listen()
        # The handler raised it already, but perhaps inside a callback or destructor, where Python drops exceptions.
        if self.requested is not None:
            raise REASONS[self.requested]

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.failure is not None:
            raise KeyboardInterrupt
        is_first = self.requested is None
        if is_first:
            self.requested = REASON_OF[signal.Signals(number)]
        if is_first and self._is_running:
            self._requested_event.set()
        # A second SIGTERM requests nothing new; only a second Ctrl-C means that the user will not wait.
        elif number == signal.SIGINT or not self._is_running:
            raise REASONS[self.requested or ""]

    def _enforce_grace_period(self) -> None:
        # A thread shows messages, because the handler may have interrupted the code that shows them.
        self._requested_event.wait()
        if not self._finished_event.is_set():
            try:
                self._on_request()
            except Exception as error:  # noqa: BLE001  the grace period has to be enforced all the same
                self._notify(f"calls under way are not ended early: {type(error).__name__}: {error}")
            self._notify("finishing this round; interrupt again to stop at once")
        # Called twice, because the hanging call is known only after some seconds.
        for pause_s in (0.0, min(_EXPLAINED_AFTER_S, self._grace_s)):
            if self._finished_event.wait(pause_s) or self._explain_delay():
                break
        if not self._finished_event.wait(self._grace_s - pause_s):
            os.kill(os.getpid(), signal.SIGINT)

    def _explain_delay(self) -> bool:
        reasons = self._explain()
        for reason in reasons:
            self._notify(reason)
        return bool(reasons)


def _ignore_dropped_interrupts(hook: Callable[[Any], object], dropped: Any) -> None:
    # The exception of a signal that Python dropped is raised again by `begin`: no need to print it.
    if not (isinstance(dropped.exc_type, type) and issubclass(dropped.exc_type, KeyboardInterrupt)):
        hook(dropped)
