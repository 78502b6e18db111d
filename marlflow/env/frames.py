"""Traceback frames of the user's code, for error messages."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

from marlflow.base.errors import MarlflowError

_OURS = str(Path(__file__).parents[1])
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = {"site-packages", "dist-packages"}


def raised(error: BaseException, most_of_libraries: int = 1) -> str:
    """Format an error of the user's code as `ValueError: ...`, followed by where it was raised (see `lines_of`)."""
    text = str(error) if isinstance(error, MarlflowError) else f"{type(error).__name__}: {error}"
    return f"{text}{lines_of(error, most_of_libraries)}"


def lines_of(error: BaseException, most_of_libraries: int = 1) -> str:
    """Format the user's frames of a traceback, as Python does.

    Frames of libraries called by the user's code are left out; if all frames are in libraries, the innermost
    `most_of_libraries` are shown.
    """
    frames = their_frames(error)
    own = [frame for frame in frames if not _in_library(frame.filename)]
    written = "".join(traceback.format_list(own or frames[-most_of_libraries:])).rstrip()
    return f"\n{written}" if written else ""


def _in_library(filename: str) -> bool:
    return filename.startswith(_STANDARD_LIBRARY) or not _INSTALLED.isdisjoint(Path(filename).parts)


def their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return a traceback's frames outside marlflow; its shipped environments count as the user's code."""
    shipped = _environment_files()
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not f.filename.startswith((_OURS, "<frozen")) or f.filename in shipped]


def _environment_files() -> set[str]:
    """Return the files of the shipped environments that are loaded.

    An environment's module defines PettingZoo's function `env`; `openspiel_game` belongs to `openspiel` by its prefix.
    """
    loaded = {name: module for name, module in list(sys.modules.items()) if name.startswith(f"{__package__}.")}
    made = [name for name, module in loaded.items() if getattr(getattr(module, "env", None), "__module__", "") == name]
    return {str(getattr(module, "__file__", None)) for name, module in loaded.items() if name.startswith(tuple(made))}
