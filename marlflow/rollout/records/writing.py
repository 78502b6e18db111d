"""Writes what a rollout worker makes: finished files only, and only rows whose receipt the driver has.

So a process may die at any time, and no row that is made again later was recorded before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from marlflow.base.batch import Array, Batch
from marlflow.base.file_names import file_name
from marlflow.rollout.records.tables import to_table

ENV_STEPS = b"marlflow.env_steps"
"""In the footer of a file of rows: the env steps of each of its fragments, as a JSON list."""
ROWS, SEGMENTS = ".rows.parquet", ".segments.parquet"
_PART = ".part"
_FRAGMENTS = 64
_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Recording:
    """What is to be recorded: whose rows, by which run, and into which folder (which all workers see).

    `run` is a name of letters and digits that begins the names of the run's files: several runs may share a folder.
    `record` identifies the folder, wherever it is moved to: the `id` in its manifest.
    """

    folder: str
    policies: Sequence[str]
    run: str
    record: str


class RecordWriter:
    """Records the rows of `recording.policies` that worker `worker` makes.

    What `write` is given stays in memory, encoded, until there are 64 fragments or 64 MiB of rows of a policy, or
    `finish` is called. `write_full` and `finish` raise OSError if the disk takes no more: nothing is lost then, and the
    next call tries again.
    """

    def __init__(self, recording: Recording, worker: int) -> None:
        self.policies, self.folder, self._worker = tuple(recording.policies), recording.folder, worker
        prefix = f"{recording.run}-{worker:04d}-"
        self._files = {policy: _Files(policy_folder(recording.folder, policy), prefix) for policy in self.policies}

    def write(self, batches: Mapping[str, Batch], env_steps: int) -> None:
        """Takes one fragment of each recorded policy, made in `env_steps` env steps of the worker's copies."""
        for policy, files in self._files.items():
            files.write(batches[policy], env_steps)

    def write_full(self) -> None:
        """Writes the files that have enough fragments; call it once the driver has the receipts of all of them."""
        for files in self._files.values():
            if files.is_full:
                files.finish()

    def finish(self) -> None:
        """Writes everything, and returns once it is on disk."""
        for files in self._files.values():
            files.finish()

    @property
    def finished(self) -> dict[str, dict[str, int]]:
        """How many files there are of each policy by this worker, over resumes: {policy: {worker: number of files}}."""
        return {policy: {str(self._worker): files.number} for policy, files in self._files.items()}


def policy_folder(folder: Path | str, policy: str) -> Path:
    """Where the files of `policy` are in a folder of records."""
    return Path(folder, file_name(policy))


def forget_after(folder: Path, run: str, finished: Mapping[str, Mapping[str, int]]) -> None:
    """Removes each file of `run` in a folder of records that is not counted in `finished`, as RecordWriter has it.

    For a run that resumes from a checkpoint, before its workers start: it makes and records those rows again.
    """
    counted = {policy_folder(folder, policy).name: numbers for policy, numbers in finished.items()}
    for path in folder.glob(f"*/{run}-*-*"):
        worker, number = path.name.split(".")[0].split("-")[1:]
        if int(number) >= counted.get(path.parent.name, {}).get(str(int(worker)), 0) or path.name.endswith(_PART):
            path.unlink()


class _Files:
    """The files of one policy and worker: their names are `prefix` and a number."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        folder.mkdir(parents=True, exist_ok=True)
        self.number = 1 + max([_number(path) for path in folder.glob(f"{prefix}*{ROWS}")], default=-1)
        self._sinks: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}
        self._fragments: list[int] = []
        self._bytes = self._steps_without_rows = 0
        self._encoded: list[dict[str, Any]] = []

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a file, or a file that could not be written before."""
        return bool(self._encoded) or len(self._fragments) >= _FRAGMENTS or self._bytes >= _BYTES

    def write(self, batch: Batch, env_steps: int) -> None:
        """A fragment; of one without rows the env steps count with the next."""
        self._steps_without_rows += env_steps
        if not batch.rows:
            return
        for ending, columns in ((ROWS, batch.columns), (SEGMENTS, batch.segments)):
            self._bytes += self._append(ending, columns)
        self._fragments.append(self._steps_without_rows)
        self._steps_without_rows = 0

    def _append(self, ending: str, columns: Mapping[str, Array]) -> int:
        table = to_table(columns)
        if ending not in self._writers:
            self._sinks[ending] = pa.BufferOutputStream()
            self._writers[ending] = pq.ParquetWriter(
                self._sinks[ending],
                table.schema,
                compression="lz4",
                use_dictionary=False,
                write_statistics=False,
                write_page_checksum=True,
            )
        self._writers[ending].write_table(table, row_group_size=table.num_rows)
        return int(table.nbytes)

    def finish(self) -> None:
        """Ends the present file, if there is one, and writes it; its rows come last, and make it whole."""
        if self._writers:
            self._writers[ROWS].add_key_value_metadata({ENV_STEPS: json.dumps(self._fragments)})
            for writer in self._writers.values():
                writer.close()
            self._encoded.append({ending: self._sinks[ending].getvalue() for ending in (SEGMENTS, ROWS)})
            self._sinks, self._writers, self._fragments, self._bytes = {}, {}, [], 0
        while self._encoded:
            for ending, encoded in self._encoded[0].items():
                _write_synced(self._folder / f"{self._prefix}{self.number:06d}{ending}", encoded)
            self.number += 1
            del self._encoded[0]


def _write_synced(path: Path, encoded: Any) -> None:
    """Written aside, synced and renamed; on OSError nothing of it is left, where that is possible."""
    aside = path.with_name(path.name + _PART)
    try:
        with open(aside, "wb") as file:
            file.write(encoded)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def _number(path: Path) -> int:
    return int(path.name.removesuffix(ROWS).rpartition("-")[2])
