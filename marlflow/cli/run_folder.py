"""The folder of a run, as an argument of a command."""

from __future__ import annotations

from pathlib import Path

from marlflow.runtime.run_folders import run_folder as checked_folder
from marlflow.runtime.run_folders import suggestion

__all__ = ["run_folder", "suggestion"]

_VERBS = {"league": "show"}


def run_folder(text: str, command: str) -> Path:
    """Return the folder that `text` names; raises ConfigInvalid if it is the folder of no run that has checkpoints."""
    return checked_folder(text, command, _VERBS.get(command, command))
