"""The handler of run.log: a disk that is full costs lines of it, not tracebacks on the terminal."""

from __future__ import annotations

import logging
import sys


class RunLog(logging.FileHandler):
    """Writes a log file; says once, on standard error, if it cannot be written."""

    _said = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Called by logging inside an except clause."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._said:
            self._said = True
            sys.stderr.write(f"{self.baseFilename} cannot be written: {error}; lines are missing in it from here on\n")
