"""The signals that ask a process to end, and handlers of them for a while."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""A terminal was closed; None on Windows, where none sends it."""
ENDING: Final = (signal.SIGINT, signal.SIGTERM) if _HANGUP is None else (signal.SIGINT, signal.SIGTERM, _HANGUP)
"""Ctrl-C, a request to terminate, and a closed terminal."""


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[Callable[[], None]]:
    """Let `handler` handle the signals of ENDING in this context, of the main thread; yields what installs it again.

    An ignored SIGHUP stays ignored, as nohup wants it.
    """
    before = {number: signal.getsignal(number) for number in ENDING}

    def install() -> None:
        for number in ENDING:
            if number != _HANGUP or before[number] != signal.SIG_IGN:
                signal.signal(number, handler)

    try:
        install()
        yield install
    finally:
        for number, earlier in before.items():
            # None is a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)
