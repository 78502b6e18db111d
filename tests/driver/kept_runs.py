"""The contents of a run's last checkpoint for tests: everything saved, as plain values, without times."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from marlflow.base.serialization import from_bytes
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runs.saved_runs import DRIVER, newest


def kept(run_dir: Path) -> dict[str, Any]:
    """All trees of the newest checkpoint by name; the rows of a replay as one, however many files they are in."""
    checkpoint = newest(run_dir)
    trees, rows = {}, defaultdict(list)
    for name in checkpoint.names:
        kind, _, numbers = name.rpartition(".")
        if name.startswith("member."):
            # An exported file, which is no tree.
            trees[name] = bytes(checkpoint.read(name))
            continue
        tree = from_bytes(checkpoint.read(name))
        if name.startswith("rows."):
            rows[kind.replace("rows.", "replay.", 1)].append((int(numbers.partition("-")[0]), tree))
        else:
            trees[name] = without_times(tree)
    for name, parts in rows.items():
        trees[f"{name} rows"] = _held(
            joined([part for _, part in sorted(parts, key=lambda part: part[0])]), trees[name]
        )
    return trees


def driver(checkpoint: Checkpoint) -> Any:
    return from_bytes(checkpoint.read(DRIVER))


def _held(rows: dict[str, Any], replay: Mapping[str, Any]) -> dict[str, Any]:
    """Without rows that were evicted after their file was written."""
    if "numbers" in rows:
        left = np.isin(rows["numbers"], replay["numbers"])
        return {"columns": {name: column[left] for name, column in rows["columns"].items()}}
    evicted = int(replay["first"] - rows["first"])
    segments = int(np.count_nonzero(rows["segments"]["stop"] <= replay["first"]))
    return {
        "columns": {name: column[evicted:] for name, column in rows["columns"].items()},
        "segments": {name: column[segments:] for name, column in rows["segments"].items()},
    }


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Trees of arrays, one after the other; of what is no array, the first."""
    first = parts[0]
    made: dict[str, Any] = {}
    for name, value in first.items():
        if isinstance(value, Mapping):
            made[name] = joined([part[name] for part in parts])
        else:
            made[name] = np.concatenate([part[name] for part in parts]) if isinstance(value, np.ndarray) else value
    return made


def by_env(workers: Mapping[str, Any]) -> dict[str, Any]:
    """The workers' tree in the order of environments, for any division among workers."""
    tables = {}
    for name, table in workers["tables"].items():
        order = np.argsort(table["env"], kind="stable")
        tables[name] = {column: values[order] for column, values in table.items()}
    return {**workers, "envs": sorted(workers["envs"], key=lambda env_index: env_index["env"]), "tables": tables}


# How often workers are sent members depends on their number, and on how often they are started; learners that are
# started again compile again.
_OF_PROCESSES = frozenset({"reported", "sent", "members_sent", "bytes_sent", "cache_hits", "compiles"})


def without_times(tree: Any) -> Any:
    """A tree without what may differ between two runs that did the same: keys that end in `_s`, and _OF_PROCESSES."""
    if isinstance(tree, Mapping):
        return {
            key: without_times(value)
            for key, value in tree.items()
            if not key.endswith("_s") and key not in _OF_PROCESSES
        }
    return [without_times(value) for value in tree] if isinstance(tree, list) else tree


def entries_in(run_dir: Path) -> dict[str, Any]:
    """The frozen entries in the newest checkpoint."""
    checkpoint = newest(run_dir)
    names = [name for name in checkpoint.names if name.startswith("frozen.")]
    return {name.removeprefix("frozen."): from_bytes(checkpoint.read(name)) for name in names}


def assert_equal(one: Any, other: Any, where: str = "") -> None:
    """Bit for bit; the message has the path of each difference."""
    assert not (found := list(islice(differences(one, other, where), 12))), "\n".join(found)


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """Yield each path at which two trees differ, and how."""
    if type(one) is not type(other) or _leaf(one) != _leaf(other):
        yield f"{where}: {_brief(one)} is not {_brief(other)}"
    elif isinstance(one, Mapping):
        yield from (f"{where}/{key}: only one has it" for key in sorted(one.keys() ^ other.keys(), key=str))
        for key in one:
            if key in other:
                yield from differences(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list):
        if len(one) != len(other):
            yield f"{where}: {len(one)} items are not {len(other)}"
        for place, (left, right) in enumerate(zip(one, other, strict=False)):
            yield from differences(left, right, f"{where}[{place}]")


def _leaf(value: Any) -> Any:
    """The form in which a leaf value is compared."""
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return None if isinstance(value, Mapping | list) else repr(value)


def _brief(value: Any) -> str:
    shape = f"{value.dtype}{list(value.shape)} " if isinstance(value, np.ndarray) else ""
    return shape + textwrap.shorten(repr(value), 80)
