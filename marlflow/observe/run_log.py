"""run.log: a run's log messages, in a file in its folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "run.log"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RunLog(logging.FileHandler):
    """Writes a log file; when the disk is full, lines are lost, which is reported once on standard error."""

    _said = False

    def handleError(self, record: logging.LogRecord) -> None:
        # logging calls this inside its except clause.
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._say(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close the file; unwritten lines may be lost."""
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
    """Append log messages to the folder's run.log, marlflow's own from INFO up.

    What the terminal shows does not change, whether logging is configured or not.
    """
    root, own = logging.getLogger(), logging.getLogger("marlflow")
    wanted, level = own.getEffectiveLevel(), own.level
    handler = RunLog(run_dir / NAME, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))

    def is_for_others(record: logging.LogRecord) -> bool:
        """Send messages below marlflow's former level to the file only."""
        if record.levelno < wanted:
            handler.handle(record)
        return record.levelno >= wanted

    # Python prints warnings to standard error only while there is no handler, so add that fallback explicitly.
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
