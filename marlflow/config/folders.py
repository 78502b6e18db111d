"""Check the folders that a run writes to, and create a new one for each run."""

from __future__ import annotations

import itertools
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from marlflow.base.errors import ConfigInvalid
from marlflow.base.links import link_problems

# More than the files that a run writes before it begins.
_TRIAL_BYTES = 2**16
_LONGEST_NAME = 100
_NO_NAME = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]|^[.\s]|[.\s]$|^$')


def name_problem(value: str) -> str | None:
    """Return what the name of a run or a policy should be; None if it can name a folder."""
    if _NO_NAME.search(value) or len(value.encode(errors="replace")) > _LONGEST_NAME:
        return (
            f"must be a name for a folder: 1 to {_LONGEST_NAME} letters, digits, _, - and others, but no / \\ : * ? "
            '" < > |, and neither dots nor spaces at its ends'
        )
    return None


def folder_problems(setting: str, folder: Path, remedy: str = "choose another") -> Iterator[str]:
    """Yield a problem if `folder`, from `setting`, cannot be created or written to."""
    try:
        folder = folder.absolute()
        # Raises for a name that is too long, or has a NUL.
        folder.exists()
        existing = next(part for part in (folder, *folder.parents) if part.exists())
        # Tried, because permissions alone do not tell: a disk may be full, and nothing can be created in /proc.
        with tempfile.TemporaryDirectory(prefix=".marlflow-", dir=existing) as trial:
            Path(trial, "file").write_bytes(bytes(_TRIAL_BYTES))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        yield f"{setting}: the folder {str(folder)!r:.200} cannot be made or written to: {reason}; {remedy}"


def searchpath_problems(folders: Sequence[str]) -> Iterator[str]:
    """Yield a problem for each folder of configuration groups that does not exist."""
    for folder in folders:
        scheme, separator, path = folder.rpartition("://")
        if scheme in ("", "file") and not Path(path if separator else folder).is_dir():
            yield f"the configuration folder {folder.removeprefix('file://')} does not exist"


def searchpath_override(folders: Sequence[str]) -> list[str]:
    """Return the override that has Hydra look for configuration groups in `folders`, too; none without folders."""
    return [f"hydra.searchpath=[{','.join(map(quoted, folders))}]"] if folders else []


def quoted(value: str) -> str:
    """Quote for Hydra's command line; interpolations `${...}` keep their meaning."""
    return "'" + value.replace("'", "\\'") + "'"


def existing_run_problems(folder: Path) -> Iterator[str]:
    """Yield a problem if `folder` already contains a run, or links that lead out of it where a run has its files."""
    yield from link_problems(folder)
    if any((folder / name).exists() for name in ("checkpoints", "metrics.jsonl")):
        yield (
            f"there is a run in {folder} already; continue it with `marlflow resume {shlex.quote(str(folder))}`, or "
            "choose another directory"
        )


def check_resumed(folder: Path) -> None:
    """Raise ConfigInvalid if a run cannot continue in `folder`: links lead out of it, or it cannot be written to."""
    remedy = "make it writable, or copy the run to a folder that is, and resume it there"
    if problems := [*link_problems(folder), *folder_problems("the run's directory", folder, remedy)]:
        raise ConfigInvalid(problems)


def new_folder(folder: Path) -> Path:
    """Create `folder`, or the first new one of `<folder>_2`, `<folder>_3`, ..., and return it.

    Processes that start at the same time get different folders.
    """
    # Parents may be shared by runs; only the last folder has to be new.
    folder.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}_{number}")
        try:
            # Fails if it exists, so only one process gets it.
            candidate.mkdir()
        except FileExistsError:
            continue
        return candidate
    raise AssertionError("numbers do not end")
