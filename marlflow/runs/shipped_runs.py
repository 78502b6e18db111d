"""Trained policies that come with marlflow: `gallery:<name>` in place of a run's folder."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import cache_folder
from marlflow.base.links import check_links
from marlflow.base.sentences import meant

PREFIX = "gallery:"
_SHIPPED = Path(__file__).parent / "gallery"


def shipped_runs() -> list[str]:
    """Return the names of the runs that come with marlflow, sorted."""
    return sorted(path.name for path in _SHIPPED.iterdir() if path.is_dir()) if _SHIPPED.is_dir() else []


def unpacked(name: str) -> Path:
    """Return a folder of this user's with the run `name`; raises ConfigInvalid if there is none, or no folder for it.

    It is a copy in the user's cache folder, because evaluations are written into the folder of their run. One of other
    files has another name, so nothing is ever replaced but what was damaged.
    """
    if name not in (names := shipped_runs()):
        raise ConfigInvalid([f"there is no {PREFIX}{name}{meant(name, names)}; there are {', '.join(names) or 'none'}"])
    files = {path.relative_to(_SHIPPED): path.read_bytes() for path in (_SHIPPED / name).rglob("*") if path.is_file()}
    content = hashlib.sha256(b"".join(str(path).encode() + files[path] for path in sorted(files))).hexdigest()[:8]
    try:
        cache = cache_folder("gallery") / content
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, data in files.items():
            _write(cache / path, data)
    except (OSError, RuntimeError) as error:
        remedy = "set XDG_CACHE_HOME to a folder that you can write to"
        raise ConfigInvalid([f"{PREFIX}{name} cannot be unpacked: {error}; {remedy}"]) from error
    check_links(cache / name)
    return cache / name


def _write(path: Path, data: bytes) -> None:
    """Write a file, unless it is there; whole, because another process may read it."""
    if path.is_file() and not path.is_symlink() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)
