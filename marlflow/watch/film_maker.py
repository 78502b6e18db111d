"""The process that makes a film of a run's newest checkpoint: `python -m marlflow.watch.film_maker RUN SETTINGS`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from marlflow.base.errors import MarlflowError
from marlflow.html_report.extras import FILMS
from marlflow.trained.play import PlayOptions, play
from marlflow.trained.team import load
from marlflow.watch.run_films import FILMS_FOLDER

_SEED = 0


def make_film(run_dir: Path, settings: Mapping[str, Any]) -> Path:
    """Write a film of the newest checkpoint of a run, delete the oldest ones, and return its path.

    `settings` are the fields of RunFilms, and the `mode` in which policies act. Raises MarlflowError.
    """
    team, folder = load(run_dir), run_dir / FILMS_FOLDER
    film = folder / f"{team.checkpoint}.{settings['format']}"
    options = PlayOptions(
        episodes=1,
        seed=_SEED,
        mode=settings["mode"],
        video=film,
        most_frames=settings["frames"],
        longest_side=settings["longest_side"],
    )
    play(team, options, lambda _: None)
    _drop_old(folder, settings["keep"], settings["limit_s"])
    return film


def _drop_old(folder: Path, keep: int, limit_s: int) -> None:
    """Delete all films but the newest `keep`, and the files of films that were never finished."""
    own = [path for path in folder.iterdir() if path.name.partition(".")[0].isdecimal()]
    films = sorted((path for path in own if path.suffix in FILMS), key=lambda path: path.stat().st_mtime_ns)
    kept = {path.stem for path in films[-keep:]}
    for path in own:
        if path.name.partition(".")[0] in kept:
            continue
        with suppress(OSError):
            # After a resume, a process of before may still be making its film.
            if path.suffix != ".part" or path.stat().st_mtime < time.time() - limit_s:
                path.unlink()


def main() -> int:
    """Make the film; the error, if there is one, is the last line of standard error."""
    run_dir, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    # The default action ends the process also where an environment hangs outside of Python.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(settings["limit_s"])
    os.nice(10)
    try:
        make_film(run_dir, settings)
    except (MarlflowError, OSError) as error:
        sys.stderr.write(f"\n{' '.join(str(error).split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
