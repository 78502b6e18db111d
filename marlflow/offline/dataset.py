"""Recorded fragments of a policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marlflow.base.errors import ConfigInvalid, RecordsDamaged
from marlflow.base.serialization import MALFORMED
from marlflow.batches.batch import Batch
from marlflow.offline.dataset_writer import ENV_STEPS, ROWS, SEGMENTS, policy_folder


class DatasetFragment(NamedTuple):
    """A file, without its ending, and a row group of it."""

    file: str
    group: int
    env_steps: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """A policy's recorded fragments, in order, read `passes` times."""

    folder: str
    policy: str
    passes: int
    fragments: Sequence[DatasetFragment]
    mark: int = 0
    """Identifies the dataset: a hash of its files' names and sizes."""
    columns: tuple[str, ...] | None = None
    segments: tuple[str, ...] | None = None
    """The names that all files have, in their rows and in their segments; None: all names are everywhere."""

    def read(self, fragment: DatasetFragment, columns: Sequence[str] | None = None) -> Batch:
        """Return a fragment's rows as collected, or some `columns` of them; raises RecordsDamaged with the file.

        What only some files have, such as a number in infos that one of several runs recorded, is left out.
        """
        rows = self._columns(fragment, ROWS, self.columns if columns is None else columns)
        return Batch(rows, self._columns(fragment, SEGMENTS, self.segments))

    def nothing(self) -> Batch:
        """Return a batch without rows, with the same columns."""
        # A batch without rows needs the columns' dtypes and shapes, which only a fragment tells.
        first = self.read(self.fragments[0])
        return first.only(np.zeros(len(first.segments["length"]), bool))

    def _columns(self, fragment: DatasetFragment, ending: str, names: Sequence[str] | None = None) -> Any:
        # PyArrow takes long to import, and only runs with records need it; likewise below.
        import pyarrow as pa
        import pyarrow.parquet as pq

        from marlflow.offline.tables import to_columns

        path = policy_folder(self.folder, self.policy) / (fragment.file + ending)
        try:
            # Without threads and read-ahead: each worker has its own share of the CPUs.
            with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
                return to_columns(file.read_row_group(fragment.group, names, use_threads=False))
        except (pa.ArrowException, OSError, *MALFORMED) as error:
            raise RecordsDamaged(f"{path}, fragment {fragment.group}: {_message(error)}") from error


def find_dataset(folder: Path | str, policy: str, passes: int = 1) -> Dataset:
    """Find the complete files of `policy`, sorted by name.

    Raises ConfigInvalid with every unreadable file, or if there are none.
    """
    import pyarrow as pa

    where, problems = policy_folder(folder, policy), []
    files = hashlib.blake2b(digest_size=7)
    fragments: list[DatasetFragment] = []
    names: dict[str, list[tuple[str, ...]]] = {ROWS: [], SEGMENTS: []}
    for path in sorted(where.glob(f"*{ROWS}")):
        name = path.name.removesuffix(ROWS)
        try:
            steps, of_file = _contents(where, name)
        except (pa.ArrowException, OSError, *MALFORMED) as error:
            # Collect all damaged files, so that the user can remove them at once.
            problems.append(f"{path} is damaged: {_message(error)}; remove it, or record again")
            continue
        # Names and sizes instead of contents: a dataset may have many gigabytes.
        files.update(f"{name} {path.stat().st_size} ".encode())
        fragments += [DatasetFragment(name, group, count) for group, count in enumerate(steps)]
        for ending, found in of_file.items():
            names[ending].append(found)
    if not fragments and not problems:
        problems.append(f"{where} has no files of rows (*{ROWS}); was nothing recorded, or is the run still under way?")
    if problems:
        raise ConfigInvalid(problems)
    mark = int.from_bytes(files.digest())
    return Dataset(str(folder), policy, passes, tuple(fragments), mark, _common(names[ROWS]), _common(names[SEGMENTS]))


def _common(names: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the names that all files have, in the order of the first; None if they have the same."""
    everywhere = set(names[0]).intersection(*names)
    if all(len(everywhere) == len(of_file) for of_file in names):
        return None
    return tuple(name for name in names[0] if name in everywhere)


def _contents(where: Path, name: str) -> tuple[list[int], Mapping[str, tuple[str, ...]]]:
    """Return the env steps of each fragment of a file, and the names of its columns of rows and of segments."""
    import pyarrow.parquet as pq

    rows, segments = (pq.read_metadata(where / (name + ending)) for ending in (ROWS, SEGMENTS))
    steps = json.loads(rows.metadata[ENV_STEPS])
    if not isinstance(steps, list) or not all(type(count) is int and count >= 0 for count in steps):
        raise ValueError(f"its env steps are no list of counts: {str(steps)[:40]}")
    if not rows.num_row_groups == segments.num_row_groups == len(steps):
        raise ValueError(
            f"it has {rows.num_row_groups} fragments of rows, {segments.num_row_groups} of segments and env steps of "
            f"{len(steps)}"
        )
    return steps, {ROWS: _names_of(rows), SEGMENTS: _names_of(segments)}


def _names_of(metadata: Any) -> tuple[str, ...]:
    return tuple(metadata.schema.to_arrow_schema().names)


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}"
