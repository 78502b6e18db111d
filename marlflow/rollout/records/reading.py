"""Finds the recorded fragments of a policy, and reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marlflow.base.batch import Batch
from marlflow.base.errors import ConfigInvalid, RecordsDamaged
from marlflow.base.kept import MALFORMED
from marlflow.rollout.records.tables import to_columns
from marlflow.rollout.records.writing import ENV_STEPS, ROWS, SEGMENTS, policy_folder


class RecordedFragment(NamedTuple):
    """Where a fragment is: in which file (without its ending), and as which of its row groups."""

    file: str
    group: int
    env_steps: int


@dataclass(frozen=True, slots=True)
class Records:
    """The fragments of one recorded policy, in order, each to be handed out `passes` times."""

    folder: str
    policy: str
    passes: int
    fragments: Sequence[RecordedFragment]
    mark: int = 0
    """What tells them from others: a hash of the names and sizes of their files."""

    def read(self, fragment: RecordedFragment) -> Batch:
        """Its rows as they were made; raises RecordsDamaged, with the file, if they cannot be read."""
        return Batch(*(self._columns(fragment, ending) for ending in (ROWS, SEGMENTS)))

    def nothing(self) -> Batch:
        """A batch of the same columns without rows."""
        first = self.read(self.fragments[0])
        return first.only(np.zeros(len(first.segments["length"]), bool))

    def _columns(self, fragment: RecordedFragment, ending: str) -> Any:
        path = policy_folder(self.folder, self.policy) / (fragment.file + ending)
        try:
            with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
                return to_columns(file.read_row_group(fragment.group, use_threads=False))
        except (pa.ArrowException, OSError, *MALFORMED) as error:
            raise RecordsDamaged(f"{path}, fragment {fragment.group}: {_said(error)}") from error


def find_records(folder: Path | str, policy: str, passes: int = 1) -> Records:
    """The whole files of `policy` in a folder of records, by name.

    Raises ConfigInvalid if there are none, or with every file that cannot be read.
    """
    where, problems = policy_folder(folder, policy), []
    files = hashlib.blake2b(digest_size=7)
    found: list[RecordedFragment] = []
    for path in sorted(where.glob(f"*{ROWS}")):
        name = path.name.removesuffix(ROWS)
        try:
            steps = _env_steps(where, name)
        except (pa.ArrowException, OSError, *MALFORMED) as error:
            problems.append(f"{path} is damaged: {_said(error)}; remove it, or record again")
            continue
        files.update(f"{name} {path.stat().st_size} ".encode())
        found += [RecordedFragment(name, group, count) for group, count in enumerate(steps)]
    if not found and not problems:
        problems.append(f"{where} has no files of rows (*{ROWS}); was nothing recorded, or is the run still under way?")
    if problems:
        raise ConfigInvalid(problems)
    return Records(str(folder), policy, passes, tuple(found), int.from_bytes(files.digest()))


def _env_steps(where: Path, name: str) -> list[int]:
    """Of each fragment of a file."""
    rows, segments = (pq.read_metadata(where / (name + ending)) for ending in (ROWS, SEGMENTS))
    steps = json.loads(rows.metadata[ENV_STEPS])
    if not isinstance(steps, list) or not all(type(count) is int and count >= 0 for count in steps):
        raise ValueError(f"its env steps are no list of counts: {str(steps)[:40]}")
    if not rows.num_row_groups == segments.num_row_groups == len(steps):
        raise ValueError(
            f"it has {rows.num_row_groups} fragments of rows, {segments.num_row_groups} of segments and env steps of "
            f"{len(steps)}"
        )
    return steps


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}"
