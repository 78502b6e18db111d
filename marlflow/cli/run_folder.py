"""The folder of a run and its checkpoint, as arguments of a command."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.options import Option
from marlflow.runs.checkpoint_format import notes_of
from marlflow.runs.checkpoints import CheckpointStore
from marlflow.runs.saved_runs import Which, folder, suggestion, unknown_agents, unknown_members
from marlflow.runs.saved_runs import run_folder as checked_folder

__all__ = ["CHECKPOINT", "STRICT", "checked_run", "run_folder", "suggestion", "which_checkpoint"]

CHECKPOINT: Final = Option(
    "checkpoint", "best, or the env steps of a checkpoint; by default the newest whole one", value="WHICH"
)
"""The option that names a checkpoint."""

STRICT: Final = Option(
    "strict",
    "refuse a run whose checkpoint is damaged; by default the one before it is used, and a line says so",
    "switch",
)
"""The option that refuses damaged checkpoints."""

_VERBS = {"league": "show"}


def run_folder(text: str, command: str) -> Path:
    """Return the folder that `text` names; raises ConfigInvalid if it is the folder of no run that has checkpoints."""
    return checked_folder(text, command, _VERBS.get(command, command))


def checked_run(
    text: str,
    command: str,
    which: Which,
    members: Collection[str] = (),
    person: str | None = None,
    seats: Collection[str] = (),
) -> Path:
    """Return the folder that `text` names, checked as far as possible without importing torch.

    `members` are names of players; `person` and `seats` are agents. Raises InvalidInput if there is no run, no such
    checkpoint, or no player or agent of a name.
    """
    run_dir = run_folder(text, command)
    checkpoint = CheckpointStore(folder(run_dir), keep=1).listed(which if isinstance(which, int) else None)
    problems = list(unknown_members(members, checkpoint, Path.cwd()))
    env = notes_of(checkpoint).identity.get("env")
    agents = env.get("agents") if isinstance(env, dict) else None
    # An environment may not declare its agents.
    if isinstance(agents, list) and agents:
        problems += unknown_agents(person, seats, agents)
    if problems:
        raise ConfigInvalid(problems)
    return run_dir


def which_checkpoint(text: str | None) -> Which:
    """Return the checkpoint that the option names; raises ConfigInvalid for anything but best or a whole number."""
    if text is None or text == "best":
        return "best" if text == "best" else None
    if not text.isdecimal():
        raise ConfigInvalid([f"checkpoint must be best, or the env steps of a checkpoint, not {text!r}"])
    return int(text)
