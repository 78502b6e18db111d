"""All checkpoints of a run, in one folder; at every moment, a crash included, the newest whole one can be loaded.

Each is written aside, synced and renamed. What is under way or on its way out has a name that is no checkpoint's:
`.partial-<env_steps>`, `.replaced-<env_steps>` (by another of the same number, until that one stands),
`.removed-<env_steps>`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from marlflow.base.errors import CheckpointFailed, CheckpointUnusable
from marlflow.base.serialization import Tree
from marlflow.runtime.manifest import (
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
    """The checkpoints in `folder`: the newest `keep` of them, and the one of the highest metric.

    Looking changes nothing on disk, so that another process may look while a run writes. Only one may write.
    """

    __slots__ = ("_damaged", "_folder", "_keep", "_last")

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"at least 1 checkpoint is kept, not {keep}")
        self._folder, self._keep = folder, keep
        self._last: Checkpoint | None = None
        self._damaged: set[Path] = set()

    def load(self) -> Checkpoint:
        """The newest whole one; raises CheckpointUnusable, with what is wrong with each, if there is none."""
        known, unreadable = self._found()
        passed_over: list[tuple[Path, str]] = []
        for checkpoint in sorted(known, key=_newness, reverse=True):
            if (why := _damage(checkpoint)) is None:
                newer = [(path, why) for number, path, why in unreadable if number > checkpoint.env_steps]
                return replace(checkpoint, passed_over=(*passed_over, *newer))
            passed_over.append((checkpoint.path, why))
        raise _nothing_whole(self._folder, [*passed_over, *((path, why) for _, path, why in unreadable)])

    def at(self, env_steps: int) -> Checkpoint:
        """The one of that number; raises CheckpointUnusable if it is not there, or not whole."""
        known, unreadable = self._found()
        chosen = next((checkpoint for checkpoint in known if checkpoint.env_steps == env_steps), None)
        why = _damage(chosen) if chosen else next((why for n, _, why in unreadable if n == env_steps), "missing")
        if chosen is None or why is not None:
            others = ", ".join(str(one.env_steps) for one in sorted(known, key=_newness) if one is not chosen) or "none"
            raise CheckpointUnusable(
                [f"checkpoint {env_steps} in {self._folder} cannot be used: {why}; others: {others}"]
            )
        return chosen

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """The next `write` shares files of `checkpoint`; those that were passed over for it count for nothing."""
        self._last = checkpoint
        self._damaged = {path for path, _ in checkpoint.passed_over}

    def write(
        self, env_steps: int, files: Mapping[str, bytes], shared: Sequence[str], notes: Tree, metric: float | None
    ) -> Path:
        """Writes one more and removes what is beyond `keep`; a metric that is not finite counts as none.

        `shared` names files of the one written last, or gone on from, which are linked, neither copied nor read.
        `notes` are for JSON. One of the same number is replaced. Raises CheckpointFailed if the disk does not take
        it; all that was there before is then as it was.
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

    def _write(
        self, env_steps: int, files: Mapping[str, bytes], shared: Sequence[str], notes: Tree, metric: float | None
    ) -> Path:
        if not self._folder.exists():
            self._folder.mkdir(parents=True)
            _sync_folder(self._folder.parent)
        order = 1 + max((one.order for one in self._look()[0]), default=0)
        partial = self._aside("partial", env_steps)
        partial.mkdir()
        kept = {name: self._link(name, partial) for name in shared}
        for name, data in files.items():
            _write_synced(partial / tensors_file(name), data)
            kept[name] = CheckpointFile(len(data), hashlib.sha256(data).hexdigest())
        written = Checkpoint(self._path(env_steps), env_steps, order, metric, notes, kept)
        _write_synced(partial / MANIFEST, manifest_text(written))
        _sync_folder(partial)
        self._publish(partial, written)
        return written.path

    def _publish(self, partial: Path, written: Checkpoint) -> None:
        if written.path.exists():
            os.rename(written.path, self._aside("replaced", written.env_steps))
        os.rename(partial, written.path)
        before, self._last = self._last, written
        try:
            _sync_folder(self._folder)
        except OSError:
            # Back to a name that is swept away, after which the replaced one takes its place again.
            os.rename(written.path, partial)
            self._last = before
            raise

    def _link(self, name: str, partial: Path) -> CheckpointFile:
        assert self._last is not None
        known = self._last.files[name]
        source, target = self._path(self._last.env_steps) / tensors_file(name), partial / tensors_file(name)
        try:
            os.link(source, target)
        except OSError:
            # Some file systems have no hard links, and those that do allow each file only so many.
            _copy_synced(source, target)
        if (size := target.stat().st_size) != known.size_bytes:
            raise OSError(errno.EIO, f"it has {size} bytes, but {known.size_bytes} were written", str(source))
        return known

    def _failure(self, env_steps: int, error: OSError) -> str:
        last = f"the last whole one is {self._path(self._last.env_steps)}" if self._last else "it would be the first"
        return (
            f"the checkpoint of {env_steps} env steps could not be written to {self._folder}: {error}; {last}. "
            "Free space there, or see that it can be written to"
        )

    def _retire(self) -> None:
        """Removes what is beyond `keep`; what cannot be removed, or is of another format, stays."""
        with contextlib.suppress(OSError):
            known = sorted(self._look()[0], key=_newness, reverse=True)
            whole = [one for one in known if one.path not in self._damaged]
            stay = {one.env_steps for one in whole[: self._keep]}
            if rated := [one for one in whole if one.metric is not None]:
                stay.add(max(rated, key=lambda one: (one.metric, *_newness(one))).env_steps)
            for one in known:
                if one.env_steps not in stay:
                    os.rename(one.path, self._aside("removed", one.env_steps))
        self._sweep()

    def _sweep(self) -> None:
        """Clears what an interrupted write or removal left; what cannot be cleared stays until the next time."""
        with contextlib.suppress(OSError):
            for path in list(self._folder.iterdir()):
                if (match := _LEFT_OVER.fullmatch(path.name)) is None:
                    continue
                if match[1] == "replaced" and not (stands := self._folder / match[2]).exists():
                    os.rename(path, stands)
                elif path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()

    def _found(self) -> tuple[list[Checkpoint], list[tuple[int, Path, str]]]:
        try:
            return self._look()
        except OSError as error:
            raise CheckpointUnusable([f"{self._folder} cannot be listed: {error.strerror}"]) from error

    def _look(self) -> tuple[list[Checkpoint], list[tuple[int, Path, str]]]:
        """All whose manifest can be read, and of the others the number, where it is and why not."""
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
        # Replaced ones come first: one of its number that stands takes its place here.
        found = [(match, path) for path in entries if (match := _NAME.fullmatch(path.name))]
        found.sort(key=lambda one: one[0]["replaced"] is None)
        return {int(match["env_steps"]): path for match, path in found}

    def _path(self, env_steps: int) -> Path:
        return self._folder / str(env_steps)

    def _aside(self, why: str, env_steps: int) -> Path:
        return self._folder / f".{why}-{env_steps}"


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
    found = [f"{path} cannot be used: {why}" for path, why in passed_over]
    return CheckpointUnusable([*found, f"none in {folder} is whole: put one back from a copy, or start a new run"])


def _write_synced(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy_synced(source: Path, target: Path) -> None:
    with open(source, "rb") as one, open(target, "xb") as other:
        shutil.copyfileobj(one, other)
        other.flush()
        os.fsync(other.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems sync folders by themselves, and say so in this way.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
