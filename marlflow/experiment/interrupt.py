"""Ctrl-C and SIGTERM: what is under way is finished first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether a signal has `asked` the run to end; `tell` shows a message.

    What is under way may take `grace_s` seconds; then it is as if the user had interrupted again, which ends it.
    """

    def __init__(self, grace_s: float, tell: Callable[[str], None]) -> None:
        self._grace_s, self._tell = grace_s, tell
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this holds, SIGINT and SIGTERM ask; a second SIGINT raises KeyboardInterrupt."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if self.asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            if not self.asked:  # a second SIGTERM asks for nothing new
                self.asked = True
                self._tell("finishing this round; interrupt again to stop at once")
                grace.start()

        grace = threading.Timer(self._grace_s, os.kill, (os.getpid(), signal.SIGINT))
        grace.daemon = True
        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            grace.cancel()
            for number, handler in before.items():
                signal.signal(number, handler)
