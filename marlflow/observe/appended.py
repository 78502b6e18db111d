"""A file that grows by whole pieces, on a disk that may be full."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class AppendedFile:
    """Opened to append. A piece that the disk does not take waits in memory and is written before the next one.

    So the file never has a part of a piece, and none is lost as long as the process lives. `written` counts pieces.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: what cannot be written must not be left in a buffer, which closing the file would try to write.
        self._file = path.open("ab", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)
        self._waiting: list[bytes] = []
        self.written = 0

    def append(self, piece: bytes) -> None:
        """Adds a piece, on disk as soon as this returns; raises OSError if it has to wait."""
        self._waiting.append(piece)
        self._write()

    def _write(self) -> None:
        data = memoryview(b"".join(self._waiting))
        size = len(data)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            with suppress(OSError):  # of a pipe or a device: those have no end to go back to
                self._file.truncate(self._size)
            raise
        self._size += size
        self.written += len(self._waiting)
        self._waiting.clear()

    def sync(self) -> None:
        """Returns once all pieces are on disk; raises OSError if they cannot be written."""
        self._write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file; raises OSError if pieces wait that cannot be written even now.

        A second call does nothing.
        """
        if self._file.closed:
            return
        try:
            self._write()
        finally:
            self._file.close()
