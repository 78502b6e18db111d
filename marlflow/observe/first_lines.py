"""Limits the output that an environment prints while it is checked."""

from __future__ import annotations

import sys
from bdb import Bdb
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, cast


class FirstLines:
    """Passes the first `most` lines to `stream`; `left_out` counts the others."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._room = stream, most
        self.left_out = 0

    def write(self, text: str) -> int:
        """Write the lines that are within the limit."""
        # The user of a debugger has to see its prompt.
        if _is_debugged():
            self._stream.write(text)
            return len(text)
        lines = text.count("\n")
        if self._room > 0:
            kept = text.split("\n")[: self._room]
            self._stream.write("\n".join(kept) + "\n" * (lines >= self._room))
        self.left_out += max(0, lines - self._room)
        self._room = max(0, self._room - lines)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the lines that are within the limit."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_debugged() -> bool:
    return isinstance(getattr(sys.gettrace(), "__self__", None), Bdb)


@contextmanager
def first_lines(most: int) -> Iterator[None]:
    """Limit standard output and standard error to the first `most` lines each.

    All of it goes to standard error, with the number of lines left out at the end.
    """
    errors = sys.stderr
    streams = FirstLines(errors, most), FirstLines(errors, most)
    try:
        with redirect_stdout(cast(Any, streams[0])), redirect_stderr(cast(Any, streams[1])):
            yield
    finally:
        if left_out := sum(stream.left_out for stream in streams):
            more_lines = "1 more line" if left_out == 1 else f"{left_out:,} more lines"
            print(f"{more_lines} of output left out; --all-output shows all", file=errors)
