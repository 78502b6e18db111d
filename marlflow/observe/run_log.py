"""run.log: what is logged while a run lasts, in a file of the run's folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "run.log"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RunLog(logging.FileHandler):
    """Writes a log file; a full disk costs lines of it, which is said once, on standard error."""

    _said = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Called by logging inside an except clause."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._say(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Closes the file; what it still had to write may be lost."""
        try:
            super().close()
        except OSError as error:
            self._say(error)

    def _say(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            sys.stderr.write(f"{self.baseFilename} cannot be written: {error}; lines are missing in it from here on\n")


@contextmanager
def logged_in(run_dir: Path) -> Iterator[None]:
    """Appends to the folder's run.log what is logged in here, marlflow's own messages from INFO up.

    Who has set up logging, or has not, sees on the terminal what they would see without it.
    """
    root, own = logging.getLogger(), logging.getLogger("marlflow")
    wanted, level = own.getEffectiveLevel(), own.level
    handler = RunLog(run_dir / NAME, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))

    def is_for_others(record: logging.LogRecord) -> bool:
        """Messages below the level that marlflow's logger had go to the file alone."""
        if record.levelno < wanted:
            handler.handle(record)
        return record.levelno >= wanted

    # Without any handler, Python prints warnings to standard error; with ours alone it would not.
    added = [handler] if root.handlers or logging.lastResort is None else [handler, logging.lastResort]
    for one in added:
        root.addHandler(one)
    own.addFilter(is_for_others)
    own.setLevel(min(wanted, logging.INFO))
    try:
        yield
    finally:
        own.setLevel(level)
        own.removeFilter(is_for_others)
        for one in added:
            root.removeHandler(one)
        handler.close()
