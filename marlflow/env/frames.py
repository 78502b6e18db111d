"""Traceback frames of user code, for error messages."""

from __future__ import annotations

import importlib
import sysconfig
import traceback
from pathlib import Path

from marlflow.base.errors import MarlflowError

_OURS = str(Path(__file__).parents[1])
# The other simulators are around packages, whose lines are there.
_GAMES = (str(Path(__file__).parent / "games"), str(Path(__file__).parent / "simulators" / "openspiel"))
# Imports pass through importlib, and a dataclass's own __init__ is of the file "<string>".
_NOBODYS = (_OURS, "<frozen", "<string>", str(Path(importlib.__file__).parent))
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = {"site-packages", "dist-packages"}


def raised(error: BaseException, most_of_libraries: int = 1) -> str:
    """Format an error as `ValueError: ...`, followed by its `lines_of`."""
    if isinstance(error, MarlflowError):
        # It explains itself, so that frames of libraries would add nothing.
        return f"{error}{lines_of(error, 0)}"
    return f"{type(error).__name__}: {error}{lines_of(error, most_of_libraries)}"


def lines_of(error: BaseException, most_of_libraries: int = 1) -> str:
    """Format the traceback's user frames, as Python does.

    Without any, the innermost `most_of_libraries` library frames are shown.
    """
    frames = their_frames(error)
    user_frames = [frame for frame in frames if not _in_library(frame.filename)]
    text = "".join(traceback.format_list(user_frames or frames[max(0, len(frames) - most_of_libraries) :])).rstrip()
    return f"\n{text}" if text else ""


def _in_library(filename: str) -> bool:
    return filename.startswith(_STANDARD_LIBRARY) or not _INSTALLED.isdisjoint(Path(filename).parts)


def their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return a traceback's frames outside marlflow; its games count as user code."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if f.filename.startswith(_GAMES) or not f.filename.startswith(_NOBODYS)]
