"""A file that grows by whole pieces even when the disk fills up."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class AppendedFile:
    """Appends whole pieces; one that the disk refuses waits in memory and is written before the next.

    `written` counts pieces.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered, so that a failed write leaves nothing that closing the file would try to write again.
        self._file = path.open("ab", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)
        self._waiting: list[bytes] = []
        self.written = 0

    def append(self, piece: bytes) -> None:
        """Write a piece; raises OSError if it has to wait."""
        # Queued before writing, so that a failed write keeps it.
        self._waiting.append(piece)
        self._write()

    def _write(self) -> None:
        data = memoryview(b"".join(self._waiting))
        size = len(data)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError:
            # Pipes and devices cannot be truncated.
            with suppress(OSError):
                self._file.truncate(self._size)
            raise
        self._size += size
        self.written += len(self._waiting)
        self._waiting.clear()

    def sync(self) -> None:
        """Write all pieces and fsync; raises OSError if that fails."""
        self._write()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; raises OSError if waiting pieces cannot be written. May be called twice."""
        if self._file.closed:
            return
        try:
            self._write()
        finally:
            self._file.close()
