"""The checkpoint format: a folder of safetensors files, and a manifest with their sizes and hashes.

    checkpoints/20000/checkpoint.json         {format, marlflow, env_steps, order, metric, notes, files, sha256}
    checkpoints/20000/<name>.safetensors      one for each of `files`: {name: {bytes, sha256}}

A tampered checkpoint cannot execute code or read other files: nothing is unpickled, no path comes from the manifest,
no symbolic link is followed.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.files import file_name
from marlflow.base.serialization import Tree

FORMAT = 5
MANIFEST = "checkpoint.json"
_MANIFEST_BYTES = 64 * 2**20
_SUFFIX = ".safetensors"
_WHY = {errno.ENOENT: "is missing", errno.ELOOP: "is a symbolic link", errno.EISDIR: "is no regular file"}


class NotWholeError(Exception):
    """The damage of a checkpoint; not raised outside of this package."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A file's entry in the manifest."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint, as in its manifest.

    `order` numbers a run's checkpoints as written; unlike `env_steps`, it tells the newest after a resume from an older
    one. `passed_over` lists newer, damaged checkpoints, each with its damage.
    """

    path: Path
    env_steps: int
    order: int
    metric: float | None
    notes: Tree
    files: Mapping[str, CheckpointFile]
    passed_over: tuple[tuple[Path, str], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all files."""
        return tuple(self.files)

    def read(self, name: str) -> bytes:
        """Return a file; raises CheckpointUnusable if it is missing or has changed since `load`."""
        if (expected := self.files.get(name)) is None:
            raise CheckpointUnusable([f"the checkpoint {self.path} has no file {name!r}: it is of another run"])
        try:
            with _opened(self.path / tensors_file(name), expected.size_bytes) as file:
                data = file.read(expected.size_bytes)
            _check_hash(name, hashlib.sha256(data).hexdigest(), expected)
        except NotWholeError as why:
            raise CheckpointUnusable([f"the checkpoint {self.path} has changed while it was read: {why}"]) from None
        return data

    def verify(self) -> None:
        """Check every file in constant memory; raises NotWholeError."""
        for name, expected in self.files.items():
            with _opened(self.path / tensors_file(name), expected.size_bytes) as file:
                _check_hash(name, hashlib.file_digest(file, "sha256").hexdigest(), expected)


def tensors_file(name: str) -> str:
    """Return a file's name on disk; `name` may have any characters."""
    return file_name(name, _SUFFIX, plain=".")


def manifest_text(checkpoint: Checkpoint) -> bytes:
    """Return the manifest; raises TypeError or ValueError if the notes are not JSON data."""
    files = {name: {"bytes": file.size_bytes, "sha256": file.sha256} for name, file in checkpoint.files.items()}
    content = {
        "format": FORMAT,
        "marlflow": _version(),
        "env_steps": checkpoint.env_steps,
        "order": checkpoint.order,
        "metric": checkpoint.metric,
        "notes": checkpoint.notes,
        "files": files,
    }
    # The hash is checked on data read back from JSON, where keys are strings and tuples are lists.
    content = json.loads(json.dumps(content))
    return json.dumps({**content, "sha256": _canonical_hash(content)}, indent=1).encode()


def open_checkpoint(path: Path, env_steps: int) -> Checkpoint:
    """Read the manifest alone; raises NotWholeError."""
    if path.is_symlink():
        raise NotWholeError("it is a symbolic link")
    try:
        with _opened(path / MANIFEST, None) as file:
            content = json.loads(file.read(_MANIFEST_BYTES).decode())
        _check_manifest(content)
        return _checkpoint(path, env_steps, content)
    except (ValueError, RecursionError) as error:
        raise NotWholeError(f"{MANIFEST} is damaged: {error}") from None


def _check_manifest(content: Any) -> None:
    if not isinstance(content, dict):
        raise NotWholeError(f"{MANIFEST} is no JSON object")
    # Checked before the hash, which other formats may compute differently.
    if (version := content.get("format")) != FORMAT:
        raise NotWholeError(
            f"its format is {str(version)[:20]}, written by marlflow {str(content.get('marlflow'))[:20]}; marlflow "
            f"{_version()} reads format {FORMAT}: resume with the version that wrote it"
        )
    stated = content.pop("sha256", None)
    if stated != _canonical_hash(content):
        raise NotWholeError(f"{MANIFEST} is damaged: its content does not have the hash that it states")


def _checkpoint(path: Path, env_steps: int, content: dict[str, Any]) -> Checkpoint:
    match content:
        case {
            "env_steps": int(stated),
            "order": int(order),
            "metric": None | int() | float() as metric,
            "notes": notes,
            "files": dict(listed),
        } if stated == env_steps:
            return Checkpoint(path, env_steps, order, metric, notes, {name: _file(listed[name]) for name in listed})
    raise NotWholeError(f"{MANIFEST} does not describe a checkpoint of {env_steps} env steps")


def _file(entry: Any) -> CheckpointFile:
    match entry:
        case {"bytes": int(size), "sha256": str(digest)}:
            return CheckpointFile(size, digest)
    raise NotWholeError(f"{MANIFEST} does not give every file's size and hash")


def _canonical_hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _version() -> str:
    # From the installed metadata: importing marlflow here would import the layers above.
    return importlib.metadata.version("marlflow")


def _check_hash(name: str, digest: str, expected: CheckpointFile) -> None:
    if digest != expected.sha256:
        raise NotWholeError(f"the file {name!r} is damaged: it does not have the hash that {MANIFEST} states")


@contextmanager
def _opened(path: Path, size_bytes: int | None) -> Iterator[BufferedReader]:
    """Open a regular file of that size; raises NotWholeError, also during reads."""
    try:
        with open(path, "rb", opener=_open_no_follow) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NotWholeError(f"{path.name} is no regular file")
            if size_bytes is not None and status.st_size != size_bytes:
                raise NotWholeError(f"{path.name} has {status.st_size} bytes, not {size_bytes}")
            yield file
    except OSError as error:
        why = _WHY.get(error.errno or 0, f"cannot be read: {error.strerror}")
        raise NotWholeError(f"{path.name} {why}") from None


def _open_no_follow(path: str, flags: int) -> int:
    # A link could lead anywhere, and opening a named pipe would block.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
