"""Chooses a run's console: a live view on a terminal, plain lines in a pipe, or none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from marlflow.base.errors import ConfigInvalid
from marlflow.observe.plain import PlainConsole
from marlflow.observe.report import Report, RunInfo

log = logging.getLogger("marlflow")

ConsoleKind: TypeAlias = Literal["auto", "live", "plain", "none"]


class RunConsole(Protocol):
    """Shows reports and messages."""

    def report(self, record: Report) -> None:
        """Show a report."""

    def close(self) -> None:
        """Leave the last state or a summary; may be called twice."""

    def notice(self, text: str) -> None:
        """Show a message, such as "stopping after this round"; after `close`, below the summary."""


class SilentConsole:
    """Shows nothing."""

    def report(self, record: Report) -> None:
        pass

    def notice(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class DetachableConsole:
    """Writes to `console` until its output breaks: a closed terminal or pipe does not end a run."""

    def __init__(self, console: RunConsole) -> None:
        self._console: RunConsole = console

    def report(self, record: Report) -> None:
        self._try(lambda: self._console.report(record))

    def notice(self, text: str) -> None:
        self._try(lambda: self._console.notice(text))

    def close(self) -> None:
        self._try(self._console.close)

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except OSError as error:
            self._console = SilentConsole()
            log.warning("the run's output cannot be written any more (%s), so nothing more is shown", error)


def console(kind: ConsoleKind, info: RunInfo) -> RunConsole:
    """Open a console; `auto` is live on a terminal that can redraw, or else plain.

    Raises ConfigInvalid for another kind.
    """
    if kind == "none":
        return SilentConsole()
    if kind == "plain" or (kind == "auto" and not _can_redraw()):
        return PlainConsole(info)
    if kind in ("auto", "live"):
        # Importing rich takes a while; other consoles do without it.
        from marlflow.observe.live import LiveConsole

        return LiveConsole(info)
    raise ConfigInvalid([f"log.console: expected auto, live, plain or none, got {kind!r}"])


def _can_redraw() -> bool:
    from rich.console import Console

    terminal = Console()
    return terminal.is_terminal and not terminal.is_dumb_terminal and not terminal.is_jupyter
