"""Writes offline datasets: complete files, of rows whose receipts the driver has.

So after a crash, rows collected again were not written before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlflow.base.arrays import Array
from marlflow.base.files import file_name
from marlflow.batches.batch import Batch

ENV_STEPS = b"marlflow.env_steps"
"""Footer key of a rows file: the env steps of each fragment, as a JSON list."""
ROWS, SEGMENTS = ".rows.parquet", ".segments.parquet"
_PART = ".part"
_FRAGMENTS = 64
_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class DatasetTarget:
    """The dataset to write, in a folder that all workers see.

    `run` (letters and digits) begins file names, since runs may share the folder. `record` is the `id` in the manifest.
    """

    folder: str
    policies: Sequence[str]
    run: str
    record: str


class DatasetWriter:
    """Writes the rows of `target.policies` that one worker collects.

    Encoded fragments stay in memory until a policy has 64, or 64 MiB, or until `finish`.
    """

    def __init__(self, target: DatasetTarget, worker: int) -> None:
        self.policies = tuple(target.policies)
        self.folder = target.folder
        self._worker = worker
        prefix = f"{target.run}-{worker:04d}-"
        self._files = {policy: _Files(policy_folder(target.folder, policy), prefix) for policy in self.policies}

    def write(self, batches: Mapping[str, Batch], env_steps: int) -> None:
        for policy, files in self._files.items():
            files.write(batches[policy], env_steps)

    def write_full(self) -> None:
        for files in self._files.values():
            if files.is_full:
                files.finish()

    def finish(self) -> None:
        for files in self._files.values():
            files.finish()

    @property
    def finished(self) -> dict[str, dict[str, int]]:
        return {policy: {str(self._worker): files.number} for policy, files in self._files.items()}


def policy_folder(folder: Path | str, policy: str) -> Path:
    """Return the folder of a policy's files."""
    return Path(folder, file_name(policy))


def discard_after(folder: Path, run: str, finished: Mapping[str, Mapping[str, int]]) -> None:
    """Remove the files of `run` beyond the counts in `finished`.

    Call before the workers of a resumed run start; they collect these rows again.
    """
    counted = {policy_folder(folder, policy).name: numbers for policy, numbers in finished.items()}
    for path in folder.glob(f"*/{run}-*-*"):
        worker, number = path.name.split(".")[0].split("-")[1:]
        if int(number) >= counted.get(path.parent.name, {}).get(str(int(worker)), 0) or path.name.endswith(_PART):
            path.unlink()


class _Files:
    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        folder.mkdir(parents=True, exist_ok=True)
        # A resumed run continues the numbers of its files.
        names = [path.name.removesuffix(ROWS) for path in folder.glob(f"{prefix}*{ROWS}")]
        self.number = 1 + max([int(name.rpartition("-")[2]) for name in names], default=-1)
        self._sinks: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}
        self._fragments: list[int] = []
        self._bytes = self._steps_without_rows = 0
        self._encoded: list[dict[str, Any]] = []

    @property
    def is_full(self) -> bool:
        return bool(self._encoded) or len(self._fragments) >= _FRAGMENTS or self._bytes >= _BYTES

    def write(self, batch: Batch, env_steps: int) -> None:
        # Env steps in which the policy had no rows count for its next fragment.
        self._steps_without_rows += env_steps
        if not batch.rows:
            return
        for ending, columns in ((ROWS, batch.columns), (SEGMENTS, batch.segments)):
            self._bytes += self._append(ending, columns)
        self._fragments.append(self._steps_without_rows)
        self._steps_without_rows = 0

    def _append(self, ending: str, columns: Mapping[str, Array]) -> int:
        # PyArrow takes long to import, and only runs that record need it.
        import pyarrow as pa
        import pyarrow.parquet as pq

        from marlflow.offline.tables import to_table

        table = to_table(columns)
        if ending not in self._writers:
            self._sinks[ending] = pa.BufferOutputStream()
            # Fast rather than small, since floats compress little. Checksums reveal damaged files.
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
        """Write the open file; its rows, written last, mark it complete."""
        if self._writers:
            self._writers[ROWS].add_key_value_metadata({ENV_STEPS: json.dumps(self._fragments)})
            for writer in self._writers.values():
                writer.close()
            self._encoded.append({ending: self._sinks[ending].getvalue() for ending in (SEGMENTS, ROWS)})
            self._sinks, self._writers = {}, {}
            self._fragments, self._bytes = [], 0
        while self._encoded:
            for ending, encoded in self._encoded[0].items():
                _write_synced(self._folder / f"{self._prefix}{self.number:06d}{ending}", encoded)
            # Removed one by one, so that a retry after an OSError continues with the failed file.
            self.number += 1
            del self._encoded[0]


def _write_synced(path: Path, encoded: Any) -> None:
    aside = path.with_name(path.name + _PART)
    try:
        with open(aside, "wb") as file:
            file.write(encoded)
            file.flush()
            os.fsync(file.fileno())
        # Renamed when complete: readers never see part of a file.
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
