"""What a checkpoint's manifest says of the run besides its files, as JSON; read back with every value checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from marlflow.base.errors import CheckpointUnusable
from marlflow.runtime.checkpoints import Checkpoint

_RUN = re.compile(r"[0-9a-f]{8,64}")

RecordedFiles = Mapping[str, Mapping[str, Mapping[str, int]]]
"""{folder of records, by the identity in its manifest: {policy: {worker: number of files of the run}}}."""


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of one checkpoint.

    `run` is the run's own name in folders that several runs may write to, and stays the same over resumes. `identity`
    is what has to be the same to resume. `replay` is `checkpoint.replay` of the run. `reports` is how many lines of
    metrics.jsonl were made before the checkpoint, and `recorded` how many files of recorded rows.
    """

    run: str
    identity: Mapping[str, Any]
    replay: str
    reports: int
    recorded: RecordedFiles = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """What a manifest has of them."""
        return asdict(self)


def notes_of(checkpoint: Checkpoint) -> Notes:
    """The notes of a checkpoint; raises CheckpointUnusable, with every value that is not what marlflow writes."""
    notes = checkpoint.notes
    if problems := [f"{checkpoint.path} cannot be used: its notes have {found}" for found in _wrong(notes)]:
        remedy = f"{checkpoint.path} was changed after marlflow wrote it: remove it, and the one before it is used"
        raise CheckpointUnusable([*problems, remedy])
    return Notes(**{name: notes[name] for name in Notes.__dataclass_fields__})


def _wrong(notes: object) -> Iterator[str]:
    if not isinstance(notes, dict):
        yield f"{_shown(notes)} instead of an object"
        return
    checks: dict[str, tuple[Callable[[object], bool], str]] = {
        "run": (lambda value: isinstance(value, str) and _RUN.fullmatch(value) is not None, "a hexadecimal text"),
        "identity": (lambda value: isinstance(value, dict), "an object"),
        "replay": (lambda value: value in ("rows", "none"), "'rows' or 'none'"),
        "reports": (_is_count, "a count"),
        "recorded": (_is_recorded, "counts of files by folder, policy and worker"),
    }
    for name, (is_right, expected) in checks.items():
        if name not in notes:
            yield f"no {name!r}"
        elif not is_right(notes[name]):
            yield f"{_shown(notes[name])} for {name!r} instead of {expected}"


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_recorded(value: object) -> bool:
    if not isinstance(value, dict) or not all(isinstance(folder, dict) for folder in value.values()):
        return False
    policies = [workers for folder in value.values() for workers in folder.values()]
    return all(
        isinstance(workers, dict) and all(name.isdecimal() and _is_count(count) for name, count in workers.items())
        for workers in policies
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
