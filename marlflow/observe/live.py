"""The console on a terminal: a view that updates in place, with log lines and prints above it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from marlflow.observe import wording
from marlflow.observe.rates import with_last_evaluations
from marlflow.observe.report import Report, RunInfo
from marlflow.observe.view import View


class LiveConsole:
    """Shows the run until `close`, which leaves the last state on screen.

    Log lines on the terminal appear above the view.
    """

    def __init__(
        self, info: RunInfo, terminal: Console | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._info = info
        self._terminal = terminal or Console(highlight=False)
        self._clock_s = clock_s
        self._before: Report | None = None
        self._now: Report | None = None
        self._reported_at_s = clock_s()
        self._is_open = True
        self._live = Live(
            console=self._terminal, get_renderable=self._view, refresh_per_second=1, vertical_overflow="crop"
        )
        terminal_streams = (sys.stdout, sys.stderr)
        self._live.start(refresh=True)
        # Live replaces sys.stdout and sys.stderr when it starts; handlers still hold the originals.
        self._redirected = list(_redirect_logging(terminal_streams))

    def report(self, record: Report) -> None:
        now = with_last_evaluations(self._now, record)
        self._before, self._now, self._reported_at_s = self._now, now, self._clock_s()
        self._live.refresh()

    def notice(self, text: str) -> None:
        # Not wrapped, so that a command in it can be copied.
        message = Text(f"{wording.duration(self._run_s())}  {text}", style="bold yellow")
        self._terminal.print(message, soft_wrap=True)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._live.stop()
            for handler, stream in self._redirected:
                handler.setStream(stream)

    def _run_s(self) -> float:
        return (self._now["time_s"] if self._now else 0.0) + self._clock_s() - self._reported_at_s

    def _view(self) -> View:
        if self._is_open:
            return View(self._info, self._before, self._now, self._run_s(), self._terminal.height)
        last_s = self._now["time_s"] if self._now else self._run_s()
        return View(self._info, self._before, self._now, last_s)


def _redirect_logging(terminal_streams: tuple[Any, Any]) -> Iterator[tuple[logging.StreamHandler[Any], Any]]:
    """Redirect logging handlers to the replaced terminal streams; yield the previous streams."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {
        handler: None for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers
    }
    replacements = {id(old): new for old, new in zip(terminal_streams, (sys.stdout, sys.stderr), strict=True)}
    for handler in handlers:
        if isinstance(handler, logging.StreamHandler) and id(handler.stream) in replacements:
            previous = handler.setStream(replacements[id(handler.stream)])
            if previous is not None:
                yield handler, previous
