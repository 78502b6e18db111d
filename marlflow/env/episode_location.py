"""Errors of environments, with episode, env step and the environment's part of the traceback."""

from __future__ import annotations

import traceback
from bdb import BdbQuit
from pathlib import Path
from types import TracebackType
from typing import Any

from marlflow.base.errors import DEBUGGER_QUIT, EnvironmentFailed

_OWN = ("adapter_state.py", "aec.py", "agents.py", "batched/adapter.py", "parallel.py")
_ADAPTER_FILES = {str(Path(__file__).parent / name) for name in _OWN}


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

    def raised(self, error: Exception, doing: str, agent: str | None = None) -> EnvironmentFailed:
        """Make the error for an exception raised while `doing`, e.g. `step()`.

        Raises KeyboardInterrupt instead if the user quit a debugger there.
        """
        if isinstance(error, BdbQuit):
            raise KeyboardInterrupt(DEBUGGER_QUIT) from None
        # An inner call has located it already.
        if isinstance(error, EnvironmentFailed):
            return error
        reason = f"{doing} raised {type(error).__name__}: {error}"
        return EnvironmentFailed(self.words(agent), reason, own_traceback(error))


def own_traceback(error: Exception) -> str:
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
