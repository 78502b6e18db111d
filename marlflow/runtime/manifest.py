"""One checkpoint, read: a folder of files, and a manifest that has the size and the hash of each.

    checkpoints/20000/checkpoint.json         {format, marlflow, env_steps, order, figure, notes, files, sha256}
    checkpoints/20000/<name>.safetensors      one for each of `files`: {name: {bytes, sha256}}

Whoever can write here can spoil a checkpoint, and no more: nothing is unpickled, no path comes from the manifest, no
symbolic link is followed.
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
from marlflow.base.file_names import file_name
from marlflow.base.serialization import Tree

FORMAT = 4
MANIFEST = "checkpoint.json"
_MANIFEST_BYTES = 64 * 2**20
_SUFFIX = ".safetensors"
_WHY = {errno.ENOENT: "is missing", errno.ELOOP: "is a symbolic link", errno.EISDIR: "is no regular file"}


class NotWholeError(Exception):
    """Why a checkpoint cannot be used; none leaves this package."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """What a manifest says of one file."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint, whole when it was open_checkpoint.

    `order` counts a run's checkpoints as they were written; after going on from an older one, it and not `env_steps`
    tells which is the newest. `passed_over` has each newer one that is not whole, and why.
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
        """What `read` can be asked for."""
        return tuple(self.files)

    def read(self, name: str) -> bytes:
        """The file of that name; raises CheckpointUnusable if there is none, or it has changed since `load`."""
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
        """Reads every file, piece by piece; raises NotWholeError."""
        for name, expected in self.files.items():
            with _opened(self.path / tensors_file(name), expected.size_bytes) as file:
                _check_hash(name, hashlib.file_digest(file, "sha256").hexdigest(), expected)


def tensors_file(name: str) -> str:
    """The name on disk of the file `name`, which may hold any characters."""
    return file_name(name, _SUFFIX, plain=".")


def manifest_text(checkpoint: Checkpoint) -> bytes:
    """What stands in the manifest of `checkpoint`; raises TypeError or ValueError if its notes are no JSON."""
    files = {name: {"bytes": file.size_bytes, "sha256": file.sha256} for name, file in checkpoint.files.items()}
    content = {
        "format": FORMAT,
        "marlflow": _version(),
        "env_steps": checkpoint.env_steps,
        "order": checkpoint.order,
        "figure": checkpoint.metric,
        "notes": checkpoint.notes,
        "files": files,
    }
    # Once through JSON, because what is read back is what the hash is of: keys are texts, tuples are lists.
    content = json.loads(json.dumps(content))
    return json.dumps({**content, "sha256": _canonical_hash(content)}, indent=1).encode()


def open_checkpoint(path: Path, env_steps: int) -> Checkpoint:
    """The checkpoint at `path` by its manifest alone; raises NotWholeError."""
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
    # Before the hash, which another version may take of something else.
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
            "figure": None | int() | float() as metric,
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
    # What is installed: importing the package for it would import the layers above.
    return importlib.metadata.version("marlflow")


def _check_hash(name: str, came: str, expected: CheckpointFile) -> None:
    if came != expected.sha256:
        raise NotWholeError(f"the file {name!r} is damaged: it does not have the hash that {MANIFEST} states")


@contextmanager
def _opened(path: Path, size_bytes: int | None) -> Iterator[BufferedReader]:
    """A regular file of that size, open_checkpoint; raises NotWholeError, also for what goes wrong while it is read."""
    try:
        with open(path, "rb", opener=_open_what_is_there) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise NotWholeError(f"{path.name} is no regular file")
            if size_bytes is not None and found.st_size != size_bytes:
                raise NotWholeError(f"{path.name} has {found.st_size} bytes, not {size_bytes}")
            yield file
    except OSError as error:
        why = _WHY.get(error.errno or 0, f"cannot be read: {error.strerror}")
        raise NotWholeError(f"{path.name} {why}") from None


def _open_what_is_there(path: str, flags: int) -> int:
    # A link could lead anywhere, and opening a pipe would wait for ever.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
