"""Failures of a matchmaker, with its name and the user's part of the traceback."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from marlflow.base.errors import MatchmakerFailed


def matchmaker_name(matchmaker: object) -> str:
    """Return the name of a matchmaker's function or class."""
    # A functools.partial has its function in `func`.
    named = getattr(matchmaker, "func", matchmaker)
    return str(getattr(named, "__qualname__", type(named).__name__))


_OWN = ("marlflow.sampling.", "marlflow.league.outcomes")


@contextmanager
def called(matchmaker: object, what: str, kind: str = "matchmaker") -> Iterator[str]:
    """Give the words for a call of a matchmaker; an exception becomes MatchmakerFailed with them."""
    where = f"{kind} {matchmaker_name(matchmaker)}, {what}"
    try:
        yield where
    except MatchmakerFailed:
        # Of a part of the matchmaker, such as a league's outcome: it has its own words.
        raise
    except Exception as error:
        raise MatchmakerFailed(where, f"it raised {type(error).__name__}: {error}", _user_traceback(error)) from error


def _user_traceback(error: Exception) -> str:
    frame: TracebackType | None = error.__traceback__
    # The first frames are of this module and of the caller.
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame, chain=False))
