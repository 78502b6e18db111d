"""Where an environment's error is: its episode and env step, and the traceback's frames outside marlflow."""

from __future__ import annotations

import importlib
import sysconfig
import traceback
from bdb import BdbQuit
from pathlib import Path
from types import TracebackType
from typing import Any

from marlflow.base.errors import DEBUGGER_QUIT, EnvironmentFailed, MarlflowError, ends_this_process

_OWN = ("adapter_state.py", "aec.py", "agents.py", "batched/adapter.py", "parallel.py")
_ADAPTER_FILES = {str(Path(__file__).parent / name) for name in _OWN}
_OURS = str(Path(__file__).parents[1])
# The other simulators are around packages, whose lines are there.
_GAMES = (str(Path(__file__).parent / "games"), str(Path(__file__).parent / "simulators" / "openspiel"))
# Imports pass through importlib, and a dataclass's own __init__ is of the file "<string>".
_NOBODYS = (_OURS, "<frozen", "<string>", str(Path(importlib.__file__).parent))
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = {"site-packages", "dist-packages"}


class EpisodeLocation:
    """An environment, its episode's seed, and its number of env steps begun.

    `env_steps` is 0 in reset() and 1 in the first step().
    """

    __slots__ = ("env", "env_steps", "name", "seed")

    def __init__(self, name: str, env_index: int) -> None:
        self.name, self.env = name, env_index
        self.seed: int | None = None
        self.env_steps = 0

    def begin(self, seed: int) -> None:
        """Start a new episode."""
        self.seed, self.env_steps = seed, 0

    def words(self, agent: str | None = None) -> str:
        """Return this location as the start of an error message."""
        text = f"environment {self.name}, env {self.env}"
        if self.seed is not None:
            text += f", episode seed {self.seed}, env step {self.env_steps}"
        return text if agent is None else f"{text}, agent {agent!r}"

    def broken(self, reason: str, agent: str | None = None) -> EnvironmentFailed:
        """Make the error for a violation of PettingZoo's API."""
        return EnvironmentFailed(self.words(agent), reason)

    def raised(self, error: BaseException, doing: str, agent: str | None = None) -> EnvironmentFailed:
        """Make the error for an exception raised while `doing`, e.g. `step()`.

        Raises KeyboardInterrupt instead if the user quit a debugger there, and `error` if Ray ends the process by it.
        """
        if ends_this_process(error):
            raise error
        if isinstance(error, BdbQuit):
            raise KeyboardInterrupt(DEBUGGER_QUIT) from None
        # An inner call has located it already.
        if isinstance(error, EnvironmentFailed):
            return error
        reason = f"{doing} raised {type(error).__name__}: {error}"
        return EnvironmentFailed(self.words(agent), reason, own_traceback(error))


def own_traceback(error: BaseException) -> str:
    """Format the traceback of `error` from the environment's first frame on."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename in _ADAPTER_FILES:
        frame = frame.tb_next
    # An environment's error needs no chain: its own frames say where it was raised.
    return "".join(traceback.format_exception(type(error), error, frame, chain=False))


def environment_name(env: Any) -> str:
    """Return the name in the environment's metadata, or its class's."""
    metadata = getattr(env, "metadata", None) or {}
    return str(metadata.get("name") or type(getattr(env, "unwrapped", env)).__name__)


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
