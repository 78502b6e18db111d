"""Opens an environment of either PettingZoo API."""

from __future__ import annotations

from pettingzoo import AECEnv, ParallelEnv

from marlflow.env.aec import AECWindow
from marlflow.env.parallel import ParallelWindow
from marlflow.env.place import Place, environment_name
from marlflow.env.turn import Window


def open_window(env: object, copy: int = 0, name: str | None = None) -> Window:
    """Return the adapter for `env`; `copy` and `name` are for error messages.

    Resets the environment once (seed 0) to find its agents and whether `infos` has action masks.
    """
    place = Place(name or environment_name(env), copy)
    if isinstance(env, ParallelEnv):
        return ParallelWindow(env, place)
    if isinstance(env, AECEnv):
        return AECWindow(env, place)
    raise TypeError(f"expected a PettingZoo AECEnv or ParallelEnv, got {type(env).__name__}")
