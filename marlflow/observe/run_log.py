"""Writes a run's log messages to run.log in its folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "run.log"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RunLog(logging.FileHandler):
    """Writes a log file; lines lost to a full disk are reported once on standard error."""

    _reported = False

    def handleError(self, record: logging.LogRecord) -> None:
        # logging calls this inside its except clause.
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._report_once(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        try:
            super().close()
        except OSError as error:
            self._report_once(error)

    def _report_once(self, error: OSError) -> None:
        if not self._reported:
            self._reported = True
            sys.stderr.write(f"{self.baseFilename} cannot be written: {error}; lines are missing in it from here on\n")


@contextmanager
def logged_in(run_dir: Path) -> Iterator[None]:
    """Append log messages to the folder's run.log, marlflow's own from INFO up.

    The terminal's output does not change.
    """
    root, package = logging.getLogger(), logging.getLogger("marlflow")
    former_level, level = package.getEffectiveLevel(), package.level
    handler = RunLog(run_dir / NAME, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))

    # Messages below the former level of marlflow go to the file only.
    def is_for_others(record: logging.LogRecord) -> bool:
        if record.levelno < former_level:
            handler.handle(record)
        return record.levelno >= former_level

    # Python prints warnings to standard error only while there is no handler, so add that fallback explicitly.
    added = [handler] if root.handlers or logging.lastResort is None else [handler, logging.lastResort]
    for added_handler in added:
        root.addHandler(added_handler)
    package.addFilter(is_for_others)
    package.setLevel(min(former_level, logging.INFO))
    try:
        yield
    finally:
        package.setLevel(level)
        package.removeFilter(is_for_others)
        for added_handler in added:
            root.removeHandler(added_handler)
        handler.close()
