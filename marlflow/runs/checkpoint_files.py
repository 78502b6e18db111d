"""Names and contents of the files in a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import from_bytes, to_bytes

WORKERS = "workers"


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
    """Raise CheckpointUnusable unless the files are of exactly these learners, and of the workers."""
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
