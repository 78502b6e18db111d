"""The film that a page shows: the newest that the run itself or `marlflow play` has written into the run's folder."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlflow.base.files import description_of
from marlflow.html_report.extras import FILMS
from marlflow.watch.run_films import FILMS_FOLDER

_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Film:
    """A film in a run's folder, the env steps of the checkpoint that it shows, and when it was written."""

    path: Path
    env_steps: int
    written_ns: int

    @property
    def media_type(self) -> str:
        """Its type, by which a browser shows it."""
        return FILMS[self.path.suffix]


def newest_film(folder: Path) -> Film | None:
    """Return the newest film that lies in `folder` itself or in its `films`, and is no link; None if there is none.

    Beside a whole film lies its description, `<file>.json`, which names it and is written after it.
    """
    own = folder / FILMS_FOLDER
    films = [film for where in (folder, *([] if own.is_symlink() else [own])) for film in _films(where)]
    return max(films, key=lambda film: film.written_ns, default=None)


def _films(folder: Path) -> list[Film]:
    try:
        with os.scandir(folder) as entries:
            paths = [Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    films = (_film(path) for path in paths if path.suffix in FILMS)
    return [film for film in films if film is not None]


def _film(path: Path) -> Film | None:
    try:
        beside = description_of(path)
        written_ns, described = path.stat().st_mtime_ns, beside.stat(follow_symlinks=False)
        # A named pipe would never be read to its end.
        is_file = stat.S_ISREG(described.st_mode)
        if not is_file or described.st_mtime_ns < written_ns or described.st_size > _MOST_BYTES:
            return None
        values: Any = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if (
        not isinstance(values, dict)
        or values.get("video") != path.name
        or not isinstance(values.get("checkpoint"), int)
    ):
        return None
    return Film(path, values["checkpoint"], written_ns)
