"""Stores the weights of frozen entries, such as a league's snapshots: all in files, and some also in memory.

Each entry is written once, when it is frozen; checkpoints link its file. Memory holds the most recently dealt entries,
up to a limit.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from marlflow.base.errors import ActorLost, SnapshotLost
from marlflow.base.files import replacing
from marlflow.base.links import check_links
from marlflow.base.serialization import from_bytes
from marlflow.batches.items import Weights
from marlflow.runs.checkpoint_format import tensors_file
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runs.saved_policies import entries_in, frozen_bytes, frozen_file, frozen_from
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.population import FrozenStore
from marlflow.sampling.protocol import FrozenPolicy

log = logging.getLogger("marlflow")

MEMBERS = Path("league", "members")
"""The folder of the files, in a run's directory."""


class StoredMembers(FrozenStore):
    """A FrozenStore with at most `memory_bytes` of weights in memory; the least recently dealt ones are on disk only.

    The files are in `league/members` of `run_dir`, which is emptied first. If a file cannot be written, a warning is
    logged once, and its weights stay in memory. Raises SnapshotLost if weights are on disk only and their file is gone,
    and ConfigInvalid if a link leads out of `run_dir`.
    """

    def __init__(self, run_dir: Path, driver: InlinePlace, memory_bytes: int) -> None:
        self._folder, self._driver, self._memory_bytes = run_dir / MEMBERS, driver, memory_bytes
        # All entries, without weights, in the order in which they were added; and the entries that have a file.
        self._headers: dict[str, FrozenPolicy] = {}
        self._on_disk: set[str] = set()
        # Weights in memory or their references, the least recently dealt first, and their sizes.
        self._flats: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self.bytes_in_memory = 0
        self._has_warned = False
        # Checked again: a link made since the run was checked would lose the files that it leads to.
        check_links(run_dir)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __contains__(self, entry: object) -> bool:
        return entry in self._headers

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)

    def __getitem__(self, entry: str) -> FrozenPolicy:
        header = self._headers[entry]
        if entry not in self._flats:
            self._keep(entry, frozen_from(entry, from_bytes(self._content(entry))).weights.flat)
        return _with_flat(header, self._flats[entry])

    def _content(self, entry: str) -> bytes:
        try:
            return self.file(entry).read_bytes()
        except OSError as error:
            text = f"the parameters of snapshot {entry} cannot be read: {error}; the run's checkpoints have them"
            raise SnapshotLost(f"{text}, so continue with marlflow resume") from error

    def policy_of(self, entry: str) -> str:
        return self._headers[entry].policy

    def file(self, entry: str) -> Path:
        """Return the path of an entry's file."""
        return self._folder / tensors_file(frozen_file(entry))

    def contents(self) -> dict[str, Path | bytes]:
        """Return the files of all entries in a checkpoint, by name: paths, or contents where there is no file."""
        fetch = self._driver.fetch
        return {
            frozen_file(entry): path if (path := self.file(entry)).exists() else frozen_bytes(self[entry], fetch)
            for entry in self._headers
        }

    def add(self, entry: str, frozen: FrozenPolicy) -> None:
        self._headers[entry] = _with_flat(frozen, None)
        self._sizes[entry] = self._write(entry, frozen)
        self._flats[entry] = frozen.weights.flat
        self.bytes_in_memory += self._sizes[entry]
        self._trim(entry)

    def _write(self, entry: str, frozen: FrozenPolicy) -> int:
        try:
            content = frozen_bytes(frozen, self._driver.fetch)
        except ActorLost as error:
            # Workers may still have the weights; if not, the run ends at its next checkpoint or round.
            log.warning("%s has no file: %s", entry, error)
            return 0
        path = self.file(entry)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Replaced, never overwritten: a checkpoint may share the file that was here.
            with replacing(path) as aside:
                aside.write_bytes(content)
        except OSError as error:
            if not self._has_warned:
                log.warning("%s could not be written: %s; parameters stay in memory", path, error)
            self._has_warned = True
        else:
            self._on_disk.add(entry)
        return len(content)

    def _keep(self, entry: str, flat: Any) -> None:
        self._flats[entry] = self._driver.put(flat)
        self.bytes_in_memory += self._sizes[entry]
        self._trim(entry)

    def _trim(self, needed: str) -> None:
        for entry in list(self._flats):
            if self.bytes_in_memory <= self._memory_bytes:
                return
            if entry != needed and entry in self._on_disk:
                self._forget(entry)

    def _forget(self, entry: str) -> None:
        del self._flats[entry]
        self.bytes_in_memory -= self._sizes[entry]

    def remove(self, entry: str) -> None:
        if entry in self._flats:
            self._forget(entry)
        del self._headers[entry], self._sizes[entry]
        if entry in self._on_disk:
            self._on_disk.discard(entry)
            self.file(entry).unlink(missing_ok=True)

    def mark_dealt(self, entries: Iterable[str]) -> None:
        for entry in entries:
            if entry in self._flats:
                self._flats[entry] = self._flats.pop(entry)

    def reload(self, entry: str) -> FrozenPolicy:
        if entry in self._flats and entry in self._on_disk:
            self._forget(entry)
        return self[entry]

    def restore(self, checkpoint: Checkpoint) -> None:
        """Add the entries of a checkpoint, without loading them; raise CheckpointUnusable if one is malformed."""
        for entry, name in entries_in(checkpoint).items():
            content = checkpoint.read(name)
            self._headers[entry] = _with_flat(frozen_from(entry, from_bytes(content)), None)
            self._sizes[entry] = len(content)
            path = self.file(entry)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(checkpoint.path / tensors_file(name), path)
            except OSError:
                # Some file systems have no hard links.
                path.write_bytes(content)
            self._on_disk.add(entry)


def _with_flat(frozen: FrozenPolicy, flat: Any) -> FrozenPolicy:
    return replace(frozen, weights=Weights(frozen.weights.version, flat))
