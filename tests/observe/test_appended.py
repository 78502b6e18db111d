"""A file that grows by whole pieces keeps them whole and in order, whatever the disk takes when."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marlflow.observe.sinks import AppendedFile


class Disk:
    """The file beneath, on a disk with room for so many bytes: it takes what fits, then refuses."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self.room = file, room

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._file.write(data[: self.room])
        self.room -= taken
        return int(taken)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), max_size=8))
def test_pieces_are_whole_in_order_and_none_is_lost(tmp_path_factory: Any, steps: list[tuple[int, int]]) -> None:
    path = tmp_path_factory.mktemp("appended") / "file"
    path.write_bytes(b"before")
    file = AppendedFile(path)
    disk = file._file = Disk(file._file, 0)
    pieces: list[bytes] = []
    for number, (size, room) in enumerate(steps):
        pieces.append(bytes([65 + number]) * size)
        disk.room = room
        waiting = b"".join(pieces[file.written :])
        if room < len(waiting):
            with pytest.raises(OSError, match="No space"):
                file.append(pieces[-1])
        else:
            file.append(pieces[-1])
        assert path.read_bytes() == b"before" + b"".join(pieces[: file.written])
    disk.room = 1_000
    file.close()
    file.close()
    assert file.written == len(pieces)
    assert path.read_bytes() == b"before" + b"".join(pieces)


def test_a_device_that_is_full_raises_and_closes(tmp_path: Path) -> None:
    file = AppendedFile(Path("/dev/full"))
    for act in (lambda: file.append(b"piece"), file.sync, file.close):
        with pytest.raises(OSError, match="No space left on device"):
            act()
    file.close()
