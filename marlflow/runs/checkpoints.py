"""Save and load a run's checkpoints (save_checkpoint), crash-safe: the newest complete one can always be loaded.

`checkpoint_format` describes the contents of a checkpoint.

A checkpoint is written to a temporary folder, synced and renamed. Temporary names: `.partial-<env_steps>` (being
written), `.replaced-<env_steps>` (until the new checkpoint of the same env steps is in place), `.removed-<env_steps>`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from marlflow.base.errors import CheckpointFailed, CheckpointUnusable
from marlflow.base.files import replacing
from marlflow.base.serialization import Tree
from marlflow.runs.checkpoint_format import (
    MANIFEST,
    Checkpoint,
    CheckpointFile,
    NotWholeError,
    manifest_text,
    open_checkpoint,
    tensors_file,
)

__all__ = ["Checkpoint", "CheckpointStore"]

_NAME = re.compile(r"(?P<replaced>\.replaced-)?(?P<env_steps>0|[1-9][0-9]{0,17})")
_LEFT_OVER = re.compile(r"\.(partial|removed|replaced)-([0-9]+)")


class CheckpointStore:
    """The checkpoints in `folder`: the newest `keep`, and the one with the highest metric.

    Reading changes nothing, so other processes may read while the run writes. Only one process may write.
    """

    __slots__ = ("_damaged", "_folder", "_keep", "_last")

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"at least 1 checkpoint is kept, not {keep}")
        self._folder = folder
        self._keep = keep
        # The checkpoint whose files the next one may share.
        self._last: Checkpoint | None = None
        self._damaged: set[Path] = set()

    def load(self) -> Checkpoint:
        """Return the newest undamaged checkpoint, or raise CheckpointUnusable with every damage."""
        known, unreadable = self._list()
        passed_over: list[tuple[Path, str]] = []
        for checkpoint in sorted(known, key=_newness, reverse=True):
            if (why := _damage(checkpoint)) is None:
                newer = [(path, why) for number, path, why in unreadable if number > checkpoint.env_steps]
                return replace(checkpoint, passed_over=(*passed_over, *newer))
            passed_over.append((checkpoint.path, why))
        raise _nothing_whole(self._folder, [*passed_over, *((path, why) for _, path, why in unreadable)])

    def listed(self, env_steps: int | None = None) -> Checkpoint:
        """Return one checkpoint, or the newest, by its manifest alone: its files may be damaged.

        Raises CheckpointUnusable if it is missing, or if there is none.
        """
        known, _ = self._list()
        if env_steps is not None:
            return next((one for one in known if one.env_steps == env_steps), None) or self.at(env_steps)
        return max(known, key=_newness) if known else self.load()

    def best(self, scores: Callable[[], Mapping[int, float]]) -> Checkpoint | None:
        """Return the undamaged checkpoint with the highest metric, or score by env steps if none has a metric.

        None if no undamaged one has any. Damaged ones that had more, or whose metric is unreadable, are passed over.
        """
        known, unreadable = self._list()
        rated = {one.env_steps: one.metric for one in known if one.metric is not None} or scores()
        passed_over = [(path, why) for _, path, why in unreadable]
        for one in sorted(known, key=lambda one: (rated.get(one.env_steps, -math.inf), one.order), reverse=True):
            if one.env_steps in rated:
                if (why := _damage(one)) is None:
                    return replace(one, passed_over=tuple(passed_over))
                passed_over.append((one.path, why))
        return None

    def whole(self) -> list[Checkpoint]:
        """Return all undamaged checkpoints, the newest first."""
        return sorted((one for one in self._list()[0] if _damage(one) is None), key=_newness, reverse=True)

    def at(self, env_steps: int) -> Checkpoint:
        """Return one checkpoint; raises CheckpointUnusable if it is missing or damaged."""
        known, unreadable = self._list()
        chosen = next((checkpoint for checkpoint in known if checkpoint.env_steps == env_steps), None)
        why = _damage(chosen) if chosen else next((why for n, _, why in unreadable if n == env_steps), "missing")
        if chosen is None or why is not None:
            others = ", ".join(str(c.env_steps) for c in sorted(known, key=_newness) if c is not chosen) or "none"
            raise CheckpointUnusable(
                [f"checkpoint {env_steps} in {self._folder} cannot be used: {why}; others: {others}"]
            )
        return chosen

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """Let the next `write` share files of `checkpoint`, and ignore newer, damaged checkpoints."""
        self._last = checkpoint
        self._damaged = {path for path, _ in checkpoint.passed_over}

    def write(
        self,
        env_steps: int,
        files: Mapping[str, bytes | Path],
        shared: Sequence[str],
        notes: Tree,
        metric: float | None,
    ) -> Path:
        """Write a checkpoint, delete older ones beyond `keep`, and return its path.

        `files` are contents, or paths of files that never change, which are hard-linked. So are files of the last
        checkpoint (written or continued from) that `shared` names. `notes` are JSON data. A metric that is not finite
        counts as None. Raises CheckpointFailed, leaving existing checkpoints intact.
        """
        if missing := sorted(set(shared).difference(self._last.files if self._last else ())):
            last = f"{self._last.path} does not have them" if self._last else "nothing was written or gone on from"
            raise ValueError(f"{missing} cannot be shared: {last}")
        if twice := sorted(set(shared).intersection(files)):
            raise ValueError(f"{twice} are given, and shared as well")
        metric = metric if metric is not None and math.isfinite(metric) else None
        self._sweep()
        try:
            path = self._write(env_steps, files, shared, notes, metric)
        except OSError as error:
            self._sweep()
            raise CheckpointFailed(self._failure(env_steps, error)) from error
        self._damaged.discard(path)
        self._retire()
        return path

    def rate(self, metric: float | None) -> None:
        """Give the last checkpoint another metric; raises CheckpointFailed."""
        if (last := self._last) is None or metric is None or not math.isfinite(metric) or metric == last.metric:
            return
        rated = replace(last, metric=metric)
        try:
            with replacing(last.path / MANIFEST) as aside:
                aside.write_bytes(manifest_text(rated))
        except OSError as error:
            raise CheckpointFailed(f"the metric of {last.path} could not be written: {error}") from error
        self._last = rated
        self._retire()

    def _write(
        self,
        env_steps: int,
        files: Mapping[str, bytes | Path],
        shared: Sequence[str],
        notes: Tree,
        metric: float | None,
    ) -> Path:
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            _sync_folder(self._folder.parent)
        order = 1 + max((checkpoint.order for checkpoint in self._scan()[0]), default=0)
        partial = self._temporary("partial", env_steps)
        partial.mkdir()
        entries = {name: self._link(name, partial) for name in shared}
        for name, content in files.items():
            target = partial / tensors_file(name)
            data = content if isinstance(content, bytes) else _link_synced(content, target)
            if isinstance(content, bytes):
                _write_synced(target, data)
            entries[name] = CheckpointFile(len(data), hashlib.sha256(data).hexdigest())
        written = Checkpoint(self._path(env_steps), env_steps, order, metric, notes, entries)
        _write_synced(partial / MANIFEST, manifest_text(written))
        _sync_folder(partial)
        self._publish(partial, written)
        return written.path

    def _publish(self, partial: Path, written: Checkpoint) -> None:
        if written.path.exists():
            # A folder cannot be renamed onto one that is not empty.
            os.rename(written.path, self._temporary("replaced", written.env_steps))
        os.rename(partial, written.path)
        previous, self._last = self._last, written
        try:
            _sync_folder(self._folder)
        except OSError:
            # The rename may not be on disk: undo it, so that the next sweep restores the replaced checkpoint.
            os.rename(written.path, partial)
            self._last = previous
            raise

    def _link(self, name: str, partial: Path) -> CheckpointFile:
        assert self._last is not None
        expected = self._last.files[name]
        source, target = self._path(self._last.env_steps) / tensors_file(name), partial / tensors_file(name)
        _link_or_copy(source, target)
        if (size := target.stat().st_size) != expected.size_bytes:
            raise OSError(errno.EIO, f"it has {size} bytes, but {expected.size_bytes} were written", str(source))
        return expected

    def _failure(self, env_steps: int, error: OSError) -> str:
        last = f"the last whole one is {self._path(self._last.env_steps)}" if self._last else "it would be the first"
        return (
            f"the checkpoint of {env_steps} env steps could not be written to {self._folder}: {error}; {last}. "
            "Free space there, or see that it can be written to"
        )

    def _retire(self) -> None:
        # Folders that cannot be removed, or have another format, stay: a run does not fail because of them.
        with contextlib.suppress(OSError):
            known = sorted(self._scan()[0], key=_newness, reverse=True)
            undamaged = [checkpoint for checkpoint in known if checkpoint.path not in self._damaged]
            kept = {checkpoint.env_steps for checkpoint in undamaged[: self._keep]}
            if rated := [checkpoint for checkpoint in undamaged if checkpoint.metric is not None]:
                kept.add(max(rated, key=lambda checkpoint: (checkpoint.metric, *_newness(checkpoint))).env_steps)
            for checkpoint in known:
                if checkpoint.env_steps not in kept:
                    # Renamed first, so that a crash in the middle of deletion leaves no damaged checkpoint.
                    os.rename(checkpoint.path, self._temporary("removed", checkpoint.env_steps))
        self._sweep()

    def _sweep(self) -> None:
        # Cleans up after interrupted writes and removals; failures are left to the next sweep.
        with contextlib.suppress(OSError):
            for path in list(self._folder.iterdir()):
                if (match := _LEFT_OVER.fullmatch(path.name)) is None:
                    continue
                if match[1] == "replaced" and not (original := self._folder / match[2]).exists():
                    os.rename(path, original)
                elif path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()

    def _list(self) -> tuple[list[Checkpoint], list[tuple[int, Path, str]]]:
        try:
            return self._scan()
        except OSError as error:
            raise CheckpointUnusable([f"{self._folder} cannot be listed: {error.strerror}"]) from error

    def _scan(self) -> tuple[list[Checkpoint], list[tuple[int, Path, str]]]:
        """Return checkpoints with a readable manifest; (env steps, path, damage) of others."""
        known, unreadable = [], []
        for env_steps, path in self._paths().items():
            try:
                known.append(open_checkpoint(path, env_steps))
            except NotWholeError as why:
                unreadable.append((env_steps, path, str(why)))
        return known, unreadable

    def _paths(self) -> dict[int, Path]:
        try:
            entries = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return {}
        matches = [(match, path) for path in entries if (match := _NAME.fullmatch(path.name))]
        # A replaced checkpoint counts only until its replacement is in place: later entries win.
        matches.sort(key=lambda entry: entry[0]["replaced"] is None)
        return {int(match["env_steps"]): path for match, path in matches}

    def _path(self, env_steps: int) -> Path:
        return self._folder / str(env_steps)

    def _temporary(self, reason: str, env_steps: int) -> Path:
        return self._folder / f".{reason}-{env_steps}"


def _newness(checkpoint: Checkpoint) -> tuple[int, int]:
    return checkpoint.order, checkpoint.env_steps


def _damage(checkpoint: Checkpoint) -> str | None:
    try:
        checkpoint.verify()
    except NotWholeError as why:
        return str(why)
    return None


def _nothing_whole(folder: Path, passed_over: Sequence[tuple[Path, str]]) -> CheckpointUnusable:
    if not passed_over:
        return CheckpointUnusable([f"there is no checkpoint in {folder}: start a new run with marlflow train"])
    problems = [f"{path} cannot be used: {why}" for path, why in passed_over]
    return CheckpointUnusable([*problems, f"none in {folder} is whole: put one back from a copy, or start a new run"])


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Some file systems have no hard links; others limit the number of links per file.
        _copy_synced(source, target)


def _link_synced(source: Path, target: Path) -> bytes:
    """Link a file, see that it is on disk, and return its content."""
    _link_or_copy(source, target)
    with open(target, "rb") as file:
        os.fsync(file.fileno())
        return file.read()


def _copy_synced(source: Path, target: Path) -> None:
    with open(source, "rb") as original, open(target, "xb") as copy:
        shutil.copyfileobj(original, copy)
        copy.flush()
        os.fsync(copy.fileno())


def _sync_folder(path: Path) -> None:
    # Windows opens no folders, and has nothing to sync there.
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not support fsync of a folder, and do not need it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
