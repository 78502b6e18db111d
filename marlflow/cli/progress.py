"""Shows the progress of a command on standard error, so that standard output has its results alone."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TextIO

from marlflow.base.progress import Listener, listening

EVERY_S = 30.0
"""Seconds from one line to the next where standard error is no terminal."""


@contextmanager
def shown_progress(clock_s: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Show what is being done: on a terminal in one line that is updated and removed at the end, else as sparse lines.

    Work that ends within 30 s prints no line.
    """
    with _bar() if _is_terminal(sys.stderr) else nullcontext(_lines(sys.stderr, clock_s)) as show, listening(show):
        yield


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _lines(stream: TextIO | None, clock_s: Callable[[], float]) -> Listener:
    began_s = printed_s = clock_s()

    def show(doing: str, done: int, total: int | None) -> None:
        nonlocal printed_s
        now_s = clock_s()
        if stream is None or now_s - printed_s < EVERY_S:
            return
        printed_s = now_s
        print(f"{now_s - began_s:.0f} s  {_sentence(doing, done, total)}", file=stream, flush=True)

    return show


def _sentence(doing: str, done: int, total: int | None) -> str:
    if total is not None:
        return f"{doing}: {done:,} of {total:,}"
    return f"{doing}: {done:,}" if done else doing


@contextmanager
def _bar() -> Iterator[Listener]:
    # Imported here, because it is needed on a terminal only.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn())
    # Prints go above the line, but not if standard output is a file.
    with Progress(
        *columns, console=Console(file=sys.stderr, highlight=False), transient=True, redirect_stdout=sys.stdout.isatty()
    ) as bar:
        row = bar.add_task("starting", total=None)

        def show(doing: str, done: int, total: int | None) -> None:
            # `update` would keep the total of the task before.
            bar.tasks[0].total = total
            bar.update(row, description=_sentence(doing, done, total), completed=done)

        yield show
