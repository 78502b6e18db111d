"""File names for user-chosen names, and files that are new, and whole or not there."""

from __future__ import annotations

import hashlib
import os
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 255
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "_-~")


def file_name(name: str, suffix: str = "", plain: str = "") -> str:
    """Encode `name`, any text, as a file name that ends in `suffix`.

    Distinct names stay distinct, also on case-insensitive file systems. No result is in another folder.

    >>> file_name("prey"), file_name("Prey"), file_name("manifest.json")
    ('prey', '%50rey', 'manifest%2Ejson')
    """
    # The empty name becomes a lone %, which no other name gives.
    quoted = "".join(char if char in _PLAIN or char in plain else _encoded(char) for char in name) or "%"
    if len(quoted) + len(suffix) > _LONGEST:
        # File systems limit names to 255 bytes; the hash keeps shortened ones distinct.
        digest = hashlib.sha256(quoted.encode()).hexdigest()
        quoted = f"{quoted[: _LONGEST - len(suffix) - len(digest) - 1]}-{digest}"
    return quoted + suffix


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


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
