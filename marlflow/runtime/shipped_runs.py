"""Trained policies that come with marlflow: `gallery:<name>` in place of a run's folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from marlflow.base.errors import ConfigInvalid
from marlflow.base.near import meant
from marlflow.runtime.saved_runs import EXPERIMENT, folder

PREFIX = "gallery:"
_SHIPPED = Path(__file__).parent / "gallery"


def shipped_runs() -> list[str]:
    """Return the names of the runs that come with marlflow, sorted."""
    return sorted(path.name for path in _SHIPPED.iterdir() if path.is_dir()) if _SHIPPED.is_dir() else []


def unpacked(name: str) -> Path:
    """Return a folder of this user's with the run `name`; raises ConfigInvalid if there is none of that name.

    It is a copy in the user's cache folder, because evaluations are written into the folder of their run.
    """
    if name not in (names := shipped_runs()):
        raise ConfigInvalid([f"there is no {PREFIX}{name}{meant(name, names)}; there are {', '.join(names) or 'none'}"])
    shipped = _SHIPPED / name
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marlflow" / "gallery"
    if not _is_copy(cache / name, shipped):
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Whole before it has its name: another process may look for it.
        made = Path(tempfile.mkdtemp(dir=cache))
        shutil.copytree(shipped, made / name)
        shutil.rmtree(cache / name, ignore_errors=True)
        try:
            (made / name).rename(cache / name)
        except OSError:
            if not _is_copy(cache / name, shipped):
                raise
        shutil.rmtree(made, ignore_errors=True)
    return cache / name


def _is_copy(path: Path, shipped: Path) -> bool:
    """Return whether the files of `shipped` are in `path`, whose checkpoints say what else they consist of."""
    files = [EXPERIMENT, *(str(file.relative_to(shipped)) for file in folder(shipped).glob("*/*"))]
    return all(
        (path / name).is_file() and (path / name).read_bytes() == (shipped / name).read_bytes() for name in files
    )
