"""Opens the window on an environment, whichever of PettingZoo's two kinds it is."""

from __future__ import annotations

from pettingzoo import AECEnv, ParallelEnv

from marlflow.env.aec import AECWindow
from marlflow.env.parallel import ParallelWindow
from marlflow.env.place import Place, environment_name
from marlflow.env.turn import Window


def open_window(env: object, copy: int = 0, name: str | None = None) -> Window:
    """The window on `env`; `copy` and `name` are for error messages.

    The environment is reset once (seed 0), to see whether masks come in `infos` and who is there if it declares
    nobody.
    """
    place = Place(name or environment_name(env), copy)
    if isinstance(env, ParallelEnv):
        return ParallelWindow(env, place)
    if isinstance(env, AECEnv):
        return AECWindow(env, place)
    raise TypeError(f"expected a PettingZoo AECEnv or ParallelEnv, got {type(env).__name__}")
