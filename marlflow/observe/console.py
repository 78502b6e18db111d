"""Which console a run gets: a live view on a terminal, lines when its output is piped, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from marlflow.base.errors import ConfigInvalid
from marlflow.observe.plain import PlainConsole
from marlflow.observe.record import MetricsRecord, RunInfo
from marlflow.observe.sinks import Sink

log = logging.getLogger("marlflow")

ConsoleKind: TypeAlias = Literal["auto", "live", "plain", "none"]


class RunConsole(Sink, Protocol):
    """A sink for a person's eyes, which also takes messages; closing leaves the last state or a summary behind.

    Messages can be shown after it is closed, too: they are then the last that a person sees.
    """

    def notice(self, text: str) -> None:
        """Show a message, such as "stopping after this round"."""


class SilentConsole:
    """Shows nothing."""

    def report(self, record: MetricsRecord) -> None:
        """Show nothing."""

    def notice(self, text: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


class DetachableConsole:
    """Shows what `shown` shows for as long as somebody can read it: a closed terminal or pipe does not end a run."""

    def __init__(self, shown: RunConsole) -> None:
        self._shown: RunConsole = shown

    def report(self, record: MetricsRecord) -> None:
        """Show it."""
        self._try(lambda: self._shown.report(record))

    def notice(self, text: str) -> None:
        """Show it."""
        self._try(lambda: self._shown.notice(text))

    def close(self) -> None:
        """Close what is shown."""
        self._try(self._shown.close)

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except OSError as error:
            self._shown = SilentConsole()
            log.warning("the run's output cannot be written any more (%s), so nothing more is shown", error)


def console(kind: ConsoleKind, info: RunInfo) -> RunConsole:
    """The console of this kind, already open; `auto` is live where output goes to a terminal that can redraw.

    Raises ConfigInvalid for another kind.
    """
    if kind == "none":
        return SilentConsole()
    if kind == "plain" or (kind == "auto" and not _can_redraw()):
        return PlainConsole(info)
    if kind in ("auto", "live"):
        from marlflow.observe.live import LiveConsole

        return LiveConsole(info)
    raise ConfigInvalid([f"log.console: expected auto, live, plain or none, got {kind!r}"])


def _can_redraw() -> bool:
    from rich.console import Console

    terminal = Console()
    return terminal.is_terminal and not terminal.is_dumb_terminal and not terminal.is_jupyter
