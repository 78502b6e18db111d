"""Keeps what an environment prints while it is tried from burying what was found."""

from __future__ import annotations

import sys
from bdb import Bdb
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, cast


class FirstLines:
    """A text stream that passes the first `most` lines on to `stream`; `left_out` counts the others.

    While a debugger holds the program all of it passes, since its user has to see it.
    """

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._room = stream, most
        self.left_out = 0

    def write(self, text: str) -> int:
        """Passes on as much of `text` as there is room for."""
        if _is_debugged():
            self._stream.write(text)
            return len(text)
        lines = text.count("\n")
        if self._room > 0:
            self._stream.write("".join(text.splitlines(keepends=True)[: self._room]))
        self.left_out += max(0, lines - self._room)
        self._room = max(0, self._room - lines)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_debugged() -> bool:
    return isinstance(getattr(sys.gettrace(), "__self__", None), Bdb)


@contextmanager
def first_lines(most: int) -> Iterator[None]:
    """Of what is printed in here the first `most` lines of standard output and of standard error, each, are shown.

    All of it goes to standard error, where at the end stands how much was left out.
    """
    errors = sys.stderr
    streams = FirstLines(errors, most), FirstLines(errors, most)
    try:
        with redirect_stdout(cast(Any, streams[0])), redirect_stderr(cast(Any, streams[1])):
            yield
    finally:
        if left_out := sum(stream.left_out for stream in streams):
            what = "1 more line" if left_out == 1 else f"{left_out:,} more lines"
            print(f"{what} of output left out; --all-output shows all", file=errors)
