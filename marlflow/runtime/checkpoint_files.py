"""What the files of a runtime's parts are called, and what is in them; the same for every runtime."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import from_bytes, to_bytes

WORKERS = "workers"


def learner_file(learner: str) -> str:
    """All of a learner."""
    return f"learner.{learner}"


def replay_file(replay: str) -> str:
    """All of a replay but its rows; `replay` is its name."""
    return f"replay.{replay}"


def replay_rows_file(replay: str, first: int, stop: int) -> str:
    """The rows of a replay with the numbers [first, stop)."""
    return f"rows.{replay}.{first}-{stop}"


class RowsFile(NamedTuple):
    """What the name of a file says of the rows in it: which replay's they are, and their numbers [first, stop)."""

    replay: str
    first: int
    stop: int


def rows_file(name: str) -> RowsFile | None:
    """What a file's name says of the rows in it; None if it has none."""
    found = re.fullmatch(r"rows\.(.*)\.(\d+)-(\d+)", name, re.DOTALL)
    return None if found is None else RowsFile(found[1], int(found[2]), int(found[3]))


def rows_files(replay: str, names: Collection[str]) -> list[str]:
    """Those of `names` that have rows of a replay, by the rows' numbers."""
    found = {name: rows for name in names if (rows := rows_file(name)) is not None and rows.replay == replay}
    return sorted(found, key=lambda name: found[name].first)


class ReplayState(NamedTuple):
    """A replay as bytes: all but its rows, rows (none: no bytes) with their numbers [first, stop), and all it holds."""

    state: bytes
    rows: bytes
    numbers: tuple[int, int]
    held: tuple[int, int]

    def files(self, replay: str) -> dict[str, bytes]:
        """By name."""
        state, (first, stop) = {replay_file(replay): self.state}, self.numbers
        return {**state, replay_rows_file(replay, first, stop): self.rows} if stop > first else state


def replay_state(replay: Any, first: int) -> ReplayState:
    """A replay, with those of its rows that are numbered `first` and up."""
    state, rows = replay.state(), replay.rows(first)
    numbers = (int(rows["first"]), int(rows["stop"])) if rows else (0, 0)
    return ReplayState(
        to_bytes(state), to_bytes(rows) if rows else b"", numbers, (int(state["first"]), int(state["stop"]))
    )


def load_replay(replay: Any, state: bytes | memoryview, rows: Sequence[bytes | memoryview]) -> tuple[int, int]:
    """Fills a replay with what was kept; returns the numbers [first, stop) of the rows that it then holds."""
    replay.load_state(from_bytes(state), [from_bytes(part) for part in rows])
    now = replay.state()
    return int(now["first"]), int(now["stop"])


def check_names(learners_here: Collection[str], names: Collection[str]) -> None:
    """Raises CheckpointUnusable unless there is a file of each learner, and one of the workers, and of no others."""
    expected = {learner_file(learner) for learner in learners_here} | {WORKERS}
    learners = {name for name in names if name.startswith("learner.")}
    problems = [f"it has no {name}, which this run needs" for name in sorted(expected - set(names))]
    problems += [f"it has {name}, which is no learner of this run" for name in sorted(learners - expected)]
    if problems:
        raise CheckpointUnusable(problems)


Read: TypeAlias = Callable[[str], Any]
"""The bytes of a file, by its name."""


def replay_bytes(replay: str, read: Read, names: Collection[str]) -> tuple[Any, list[Any]] | None:
    """What was kept of a replay and its rows; None if nothing was."""
    if replay_file(replay) not in names:
        return None
    return read(replay_file(replay)), [read(name) for name in rows_files(replay, names)]
