"""Which lines of a traceback are the user's own, as messages show them."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])


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
    return {str(module.__file__) for name, module in loaded.items() if name.startswith(tuple(made))}
