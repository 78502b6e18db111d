"""Where in which episode something went wrong, and the environment's own part of the traceback."""

from __future__ import annotations

import traceback
from bdb import BdbQuit
from pathlib import Path
from types import TracebackType
from typing import Any

from marlflow.base.errors import DEBUGGER_QUIT, EnvironmentFailed

_OWN = ("aec.py", "global_state.py", "opened.py", "parallel.py", "roster.py")
_WINDOW_FILES = {str(Path(__file__).with_name(name)) for name in _OWN}


class Place:
    """One copy of an environment, the seed of its episode and how far that has come.

    `env_steps` counts the env steps that the episode has begun: 0 in reset(), 1 in its first step() and after it.
    """

    __slots__ = ("copy", "env_steps", "name", "seed")

    def __init__(self, name: str, copy: int) -> None:
        self.name, self.copy = name, copy
        self.seed: int | None = None
        self.env_steps = 0

    def begin(self, seed: int) -> None:
        """A new episode begins."""
        self.seed, self.env_steps = seed, 0

    def words(self, agent: str | None = None) -> str:
        """This moment, as the head of an error message."""
        text = f"environment {self.name}, copy {self.copy}, episode seed {self.seed}, env step {self.env_steps}"
        return text if agent is None else f"{text}, agent {agent!r}"

    def broken(self, reason: str, agent: str | None = None) -> EnvironmentFailed:
        """The environment broke PettingZoo's contract."""
        return EnvironmentFailed(self.words(agent), reason)

    def raised(self, error: Exception, doing: str, agent: str | None = None) -> EnvironmentFailed:
        """The environment raised `error` while `doing`, for example `step()`.

        Raises KeyboardInterrupt if it is that of a debugger which was quit there: that is the user, who wants to stop.
        """
        if isinstance(error, BdbQuit):
            raise KeyboardInterrupt(DEBUGGER_QUIT) from None
        if isinstance(error, EnvironmentFailed):
            return error
        reason = f"{doing} raised {type(error).__name__}: {error}"
        return EnvironmentFailed(self.words(agent), reason, own_traceback(error))


def own_traceback(error: Exception) -> str:
    """The traceback of `error` as text, from the first frame that belongs to the environment."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename in _WINDOW_FILES:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame, chain=False))


def environment_name(env: Any) -> str:
    """What the environment calls itself: its metadata's name, else its class's."""
    metadata = getattr(env, "metadata", None) or {}
    return str(metadata.get("name") or type(getattr(env, "unwrapped", env)).__name__)
