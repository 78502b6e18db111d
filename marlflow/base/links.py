"""Check that no symbolic link in a run's folder leads out of it; files are never read, written or removed through one.

A run writes, replaces and removes files in its folder, and another user may have made the folder. The folder itself may
be a link, and links within it may lead to other places in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from marlflow.base.errors import ConfigInvalid

FILES: Final = (
    "metrics.jsonl",
    "events.out.tfevents",
    "learning_curves.png",
    "plan.mmd",
    "run.log",
    ".lock",
    "experiment.json",
    "run.json",
    "state.json",
    "stop_requested",
    "matrix.csv",
    "trace.json.gz",
    "sweep.csv",
    "multirun.yaml",
    "optimization_results.yaml",
)
"""The files of a run, and of a sweep."""
FOLDERS: Final = (".hydra", "evaluations", "exports", "films", "league", "record", "played")
"""The folders of a run in which any link is checked."""
OUTER: Final = ("checkpoints", "wandb", ".submitit", ".tune", ".jobs")
"""Folders that are checked themselves: a checkpoint is read without following links, others write the rest."""
# A file is written under such a name first. Files of TensorBoard and of a sweep's jobs may have any ending.
_WRITTEN_ASIDE = re.compile(r"\.(?P<name>.*)\.part")
_MOST_NAMED = 4


def check_links(folder: Path) -> None:
    """Raise ConfigInvalid if a file of a run or sweep in `folder` is reached through a link that leads out of it."""
    if problems := list(link_problems(folder)):
        more = [f"and {len(problems) - _MOST_NAMED} more such links in {folder}"] if len(problems) > _MOST_NAMED else []
        raise ConfigInvalid([*problems[:_MOST_NAMED], *more])


def link_problems(folder: Path) -> Iterator[str]:
    """Yield a problem for each link to a file or folder of a run in `folder` that leads out of it, or nowhere."""
    seen: set[Path] = set()
    left = [folder]
    while left:
        inner = left.pop()
        for entry in _entries(inner):
            if inner is folder and not _is_own(entry.name):
                continue
            path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
            if entry.is_symlink():
                if problem := link_problem(folder, path):
                    yield problem
                    continue
                path = path.resolve()
                is_folder = path.is_dir()
            # Opening a named pipe would wait for ever.
            if not is_folder and path.exists() and not path.is_file():
                yield f"{path} is neither a file nor a folder, as a run's are; remove it"
            elif is_folder and path not in seen and not (inner is folder and entry.name in OUTER):
                seen.add(path)
                left.append(path)


def link_problem(folder: Path, path: Path) -> str | None:
    """Return why a path in `folder` is not read or written, if links on the way to it lead out of it; else None."""
    try:
        target = os.path.realpath(path, strict=True)
    except FileNotFoundError:
        # It may lead to a file that would be made.
        target = os.path.realpath(path)
    except OSError as error:
        return f"{path} is a link that cannot be followed: {error.strerror}; remove it"
    if Path(target).is_relative_to(os.path.realpath(folder)):
        return None
    return (
        f"{path} leads out of {folder}, to {target}: files of a run are neither read nor written through such a link; "
        "put them in its place, or link the whole folder"
    )


def _is_own(name: str) -> bool:
    if aside := _WRITTEN_ASIDE.fullmatch(name):
        return _is_own(aside["name"])
    return name in (*FILES, *FOLDERS, *OUTER) or name.startswith(("events.out.tfevents.", ".jobs-"))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        # A missing or unreadable file is reported where it is opened.
        return []
