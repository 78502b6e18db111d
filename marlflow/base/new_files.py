"""Files that are new, and whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_new(path: Path, data: bytes) -> None:
    """Write a file; raises FileExistsError if there is one, and OSError without leaving a part of it."""
    file = path.open("xb")
    try:
        with file:
            file.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def cache_folder(topic: str) -> Path:
    """Return this user's folder of files about `topic` that can be made again; raises RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marlflow" / topic


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path to write to; its file then replaces the one at `path`, which stays after an exception."""
    aside = path.with_name(f".{path.name}.part")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
