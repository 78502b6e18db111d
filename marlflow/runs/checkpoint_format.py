"""The checkpoint format: a folder of safetensors files, and a manifest with their sizes, hashes and validated notes.

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
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.files import file_name
from marlflow.base.serialization import Tree, from_bytes, is_count, to_bytes

FORMAT = 5
MANIFEST = "checkpoint.json"
_MANIFEST_BYTES = 64 * 2**20
_SUFFIX = ".safetensors"
_WHY = {errno.ENOENT: "is missing", errno.ELOOP: "is a symbolic link", errno.EISDIR: "is no regular file"}
WORKERS = "workers"
_RUN = re.compile(r"[0-9a-f]{8,64}")

RecordedFiles = Mapping[str, Mapping[str, Mapping[str, int]]]
"""{dataset id in the folder's manifest: {policy: {worker: number of files of the run}}}."""


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
    # Settings may be numbers of NumPy.
    content = json.loads(json.dumps(content, default=np.generic.item))
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


def learner_file(learner: str) -> str:
    """Return the name of a learner's file."""
    return f"learner.{learner}"


def _replay_file(replay: str) -> str:
    return f"replay.{replay}"


class RowsFile(NamedTuple):
    """A rows file: rows [first, stop) of `replay`."""

    replay: str
    first: int
    stop: int


def rows_file(name: str) -> RowsFile | None:
    """Parse the name of a rows file; None for other files."""
    # Names of replays are chosen by users: they may contain dots and line breaks.
    match = re.fullmatch(r"rows\.(.*)\.(\d+)-(\d+)", name, re.DOTALL)
    return None if match is None else RowsFile(match[1], int(match[2]), int(match[3]))


def rows_files(replay: str, names: Collection[str]) -> list[str]:
    """Return a replay's rows files, in order."""
    parsed = {name: rows for name in names if (rows := rows_file(name)) is not None and rows.replay == replay}
    return sorted(parsed, key=lambda name: parsed[name].first)


class ReplayState(NamedTuple):
    """A serialized replay: `state`, and the rows with `numbers` [first, stop), if any.

    `held` is the range [first, stop) of all rows in the replay.
    """

    state: bytes
    rows: bytes
    numbers: tuple[int, int]
    held: tuple[int, int]

    def files(self, replay: str) -> dict[str, bytes]:
        """Return the contents of its files, by name."""
        files = {_replay_file(replay): self.state}
        first, stop = self.numbers
        if stop > first:
            files[f"rows.{replay}.{first}-{stop}"] = self.rows
        return files


def replay_state(replay: Any, first: int) -> ReplayState:
    """Serialize a replay, with rows from `first` on."""
    state, rows = replay.state(), replay.rows(first)
    numbers = (int(rows["first"]), int(rows["stop"])) if rows else (0, 0)
    return ReplayState(
        to_bytes(state), to_bytes(rows) if rows else b"", numbers, (int(state["first"]), int(state["stop"]))
    )


def load_replay(replay: Any, state: bytes | memoryview, rows: Sequence[bytes | memoryview]) -> int:
    """Restore a serialized replay; return the number of the next row that it stores."""
    saved = from_bytes(state)
    replay.load_state(saved, [from_bytes(part) for part in rows])
    return int(saved["stop"])


def check_names(learners: Collection[str], names: Collection[str]) -> None:
    """Raise CheckpointUnusable unless there are files of exactly these learners, and of the workers."""
    # Replays may be missing: checkpoint.replay=none omits them.
    expected = {learner_file(learner) for learner in learners} | {WORKERS}
    of_learners = {name for name in names if name.startswith("learner.")}
    problems = [f"it has no {name}, which this run needs" for name in sorted(expected - set(names))]
    problems += [f"it has {name}, which is no learner of this run" for name in sorted(of_learners - expected)]
    if problems:
        raise CheckpointUnusable(problems)


Read: TypeAlias = Callable[[str], Any]
"""Reads a file by name."""


def replay_bytes(replay: str, read: Read, names: Collection[str]) -> tuple[Any, list[Any]] | None:
    """Return the state and the rows files of a replay; None if it was not saved."""
    if _replay_file(replay) not in names:
        return None
    return read(_replay_file(replay)), [read(name) for name in rows_files(replay, names)]


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of one checkpoint.

    `run` names the run in datasets that several runs share; resuming keeps it. `identity` must match for a resume.
    `replay` is `checkpoint.replay`. `reports` and `recorded` count lines of metrics.jsonl and files of recorded rows.
    """

    run: str
    identity: Mapping[str, Any]
    replay: str
    reports: int
    recorded: RecordedFiles = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def notes_of(checkpoint: Checkpoint) -> Notes:
    """Return a checkpoint's notes; raise CheckpointUnusable with every invalid value."""
    notes = checkpoint.notes
    if problems := [f"{checkpoint.path} cannot be used: its notes have {problem}" for problem in _problems(notes)]:
        remedy = f"{checkpoint.path} was changed after marlflow wrote it: remove it, and the one before it is used"
        raise CheckpointUnusable([*problems, remedy])
    return Notes(**{name: notes[name] for name in Notes.__dataclass_fields__})


def _problems(notes: object) -> Iterator[str]:
    if not isinstance(notes, dict):
        yield f"{_abbreviated(notes)} instead of an object"
        return
    # A valid hash does not make the values valid: anyone who can write to the folder can also recompute it.
    checks: dict[str, tuple[Callable[[object], bool], str]] = {
        "run": (lambda value: isinstance(value, str) and _RUN.fullmatch(value) is not None, "a hexadecimal text"),
        "identity": (lambda value: isinstance(value, dict), "an object"),
        "replay": (lambda value: value in ("rows", "none"), "'rows' or 'none'"),
        "reports": (is_count, "a count"),
        "recorded": (_is_recorded, "counts of files by folder, policy and worker"),
    }
    for name, (is_right, expected) in checks.items():
        if name not in notes:
            yield f"no {name!r}"
        elif not is_right(notes[name]):
            yield f"{_abbreviated(notes[name])} for {name!r} instead of {expected}"


def _is_recorded(value: object) -> bool:
    if not isinstance(value, dict) or not all(isinstance(folder, dict) for folder in value.values()):
        return False
    policies = [workers for folder in value.values() for workers in folder.values()]
    return all(
        isinstance(workers, dict) and all(name.isdecimal() and is_count(count) for name, count in workers.items())
        for workers in policies
    )


def _abbreviated(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def as_text(value: object) -> str:
    """Return a value that is no JSON as text for `Notes.identity`, the same in each process.

    >>> as_text([1])
    '[1]'
    """
    # Addresses differ from process to process.
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
