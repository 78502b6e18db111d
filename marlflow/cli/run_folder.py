"""The folder of a run and its checkpoint, as arguments of a command."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.options import Option
from marlflow.runtime.run_folders import run_folder as checked_folder
from marlflow.runtime.run_folders import suggestion
from marlflow.runtime.saved_runs import Which

__all__ = ["CHECKPOINT", "run_folder", "suggestion", "which_checkpoint"]

CHECKPOINT: Final = Option(
    "checkpoint", "best, or the env steps of a checkpoint; by default the newest whole one", value="WHICH"
)
"""The option that names a checkpoint."""

_VERBS = {"league": "show"}


def run_folder(text: str, command: str) -> Path:
    """Return the folder that `text` names; raises ConfigInvalid if it is the folder of no run that has checkpoints."""
    return checked_folder(text, command, _VERBS.get(command, command))


def which_checkpoint(text: str | None) -> Which:
    """Return the checkpoint that the option names; raises ConfigInvalid for anything but best or a whole number."""
    if text is None or text == "best":
        return "best" if text == "best" else None
    if not text.isdecimal():
        raise ConfigInvalid([f"checkpoint must be best, or the env steps of a checkpoint, not {text!r}"])
    return int(text)
