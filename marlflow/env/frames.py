"""Which lines of a traceback are the user's own, as messages show them."""

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
    """An error of the user's code as one line, `ValueError: ...`, and under it where it was raised (see lines_of)."""
    text = str(error) if isinstance(error, MarlflowError) else f"{type(error).__name__}: {error}"
    return f"{text}{lines_of(error, most_of_libraries)}"


def lines_of(error: BaseException, most_of_libraries: int = 1) -> str:
    """Where the user's code raised an error, as Python writes it, on lines of their own.

    Of libraries that the user's code called nothing is shown; if all of it is in libraries, so many of their innermost
    frames.
    """
    frames = their_frames(error)
    own = [frame for frame in frames if not _in_library(frame.filename)]
    written = "".join(traceback.format_list(own or frames[-most_of_libraries:])).rstrip()
    return f"\n{written}" if written else ""


def _in_library(filename: str) -> bool:
    return filename.startswith(_STANDARD_LIBRARY) or not _INSTALLED.isdisjoint(Path(filename).parts)


def their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of a traceback that are not marlflow's own; its shipped environments are as good as a user's."""
    shipped = _environment_files()
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not f.filename.startswith((_OURS, "<frozen")) or f.filename in shipped]


def _environment_files() -> set[str]:
    """Of the environments that ship, as far as they are loaded.

    An environment's module has PettingZoo's function `env`; `openspiel_game` belongs to `openspiel` by its name.
    """
    loaded = {name: module for name, module in list(sys.modules.items()) if name.startswith(f"{__package__}.")}
    made = [name for name, module in loaded.items() if getattr(getattr(module, "env", None), "__module__", "") == name]
    return {str(getattr(module, "__file__", None)) for name, module in loaded.items() if name.startswith(tuple(made))}
