"""Writes what a rollout worker makes, as it makes it: finished files only, so that a process may die at any time."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from marlflow.base.batch import Array, Batch
from marlflow.rollout.records.tables import to_table

ENV_STEPS = b"marlflow.env_steps"
"""In the footer of a file of rows: the env steps of each of its fragments, as a JSON list."""
ROWS, SEGMENTS = ".rows.parquet", ".segments.parquet"
_PART = ".part"
_FRAGMENTS = 64
_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Recording:
    """What is to be recorded: whose rows, and into which folder (which all workers see)."""

    folder: str
    policies: Sequence[str]


class RecordWriter:
    """Records the rows of `recording.policies` that worker `worker` makes.

    A file is finished after 64 fragments or 64 MiB of rows, and whenever `finish` is called: written aside until then,
    and renamed.
    """

    def __init__(self, recording: Recording, worker: int) -> None:
        self.policies = tuple(recording.policies)
        folder = Path(recording.folder)
        self._files = {policy: _Files(folder / policy, worker) for policy in self.policies}

    def write(self, batches: Mapping[str, Batch], env_steps: int) -> None:
        """One fragment of each recorded policy, made in `env_steps` env steps of the worker's copies."""
        for policy, files in self._files.items():
            files.write(batches[policy], env_steps)

    def finish(self) -> None:
        """All that was written can be read."""
        for files in self._files.values():
            files.finish()

    @property
    def finished(self) -> dict[str, int]:
        """How many files there are of each policy by this worker, those that earlier runs wrote among them."""
        return {policy: files.number for policy, files in self._files.items()}

    def forget_after(self, worker: int, finished: Mapping[str, int]) -> None:
        """Removes what `worker` wrote beyond so many files: it is made, and recorded, once more."""
        for policy, number in finished.items():
            if policy in self._files:
                self._files[policy].forget_after(worker, number)


class _Files:
    """The files of one policy and worker: `<worker>-<number>`."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._folder, self._worker = folder, worker
        folder.mkdir(parents=True, exist_ok=True)
        self.number = self._next()
        self._writers: dict[str, Any] = {}
        self._fragments: list[int] = []
        self._bytes = self._steps_without_rows = 0

    def _next(self) -> int:
        return 1 + max([_number(path) for path in self._folder.glob(f"{self._worker:04d}-*{ROWS}")], default=-1)

    def forget_after(self, worker: int, number: int) -> None:
        for path in self._folder.glob(f"{worker:04d}-*{ROWS}"):
            if _number(path) >= number:
                path.unlink()  # a file of segments without one of rows is not looked at, and written over
        self.number = self._next()

    def write(self, batch: Batch, env_steps: int) -> None:
        """A fragment; of one without rows the env steps count with the next."""
        self._steps_without_rows += env_steps
        if not batch.rows:
            return
        for ending, columns in ((ROWS, batch.columns), (SEGMENTS, batch.segments)):
            self._bytes += self._append(ending, columns)
        self._fragments.append(self._steps_without_rows)
        self._steps_without_rows = 0
        if len(self._fragments) >= _FRAGMENTS or self._bytes >= _BYTES:
            self.finish()

    def _append(self, ending: str, columns: Mapping[str, Array]) -> int:
        table = to_table(columns)
        if ending not in self._writers:
            self._writers[ending] = pq.ParquetWriter(
                self._aside(ending),
                table.schema,
                compression="lz4",
                use_dictionary=False,
                write_statistics=False,
                write_page_checksum=True,
            )
        self._writers[ending].write_table(table, row_group_size=table.num_rows)
        return int(table.nbytes)

    def finish(self) -> None:
        """Ends the present file, if there is one: its rows come last, and make it whole."""
        if not self._writers:
            return
        self._writers[ROWS].add_key_value_metadata({ENV_STEPS: json.dumps(self._fragments)})
        for ending in (SEGMENTS, ROWS):
            self._writers[ending].close()
        for ending in (SEGMENTS, ROWS):
            os.replace(self._aside(ending), self._path(ending))
        self.number += 1
        self._writers, self._fragments, self._bytes = {}, [], 0

    def _path(self, ending: str) -> Path:
        return self._folder / f"{self._worker:04d}-{self.number:06d}{ending}"

    def _aside(self, ending: str) -> Path:
        path = self._path(ending)
        return path.with_name(path.name + _PART)


def _number(path: Path) -> int:
    return int(path.name.removesuffix(ROWS).partition("-")[2])
