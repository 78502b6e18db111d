"""The driver's notes in a checkpoint's manifest, as JSON; every value is validated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from marlflow.base.errors import CheckpointUnusable
from marlflow.runs.checkpoints import Checkpoint

_RUN = re.compile(r"[0-9a-f]{8,64}")

RecordedFiles = Mapping[str, Mapping[str, Mapping[str, int]]]
"""{dataset id in the folder's manifest: {policy: {worker: number of files of the run}}}."""


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of one checkpoint.

    `run` names the run in datasets that several runs share; resuming keeps it. `identity` must match for a resume.
    `replay` is `checkpoint.replay`. `reports` and `recorded` count lines of metrics.jsonl and files of recorded rows.
    """

    run: str
    identity: Mapping[str, Any]
    replay: str
    reports: int
    recorded: RecordedFiles = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def notes_of(checkpoint: Checkpoint) -> Notes:
    """Return a checkpoint's notes; raise CheckpointUnusable with every invalid value."""
    notes = checkpoint.notes
    if problems := [f"{checkpoint.path} cannot be used: its notes have {problem}" for problem in _problems(notes)]:
        remedy = f"{checkpoint.path} was changed after marlflow wrote it: remove it, and the one before it is used"
        raise CheckpointUnusable([*problems, remedy])
    return Notes(**{name: notes[name] for name in Notes.__dataclass_fields__})


def _problems(notes: object) -> Iterator[str]:
    if not isinstance(notes, dict):
        yield f"{_abbreviated(notes)} instead of an object"
        return
    # A valid hash does not make the values valid: anyone who can write to the folder can also recompute it.
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
            yield f"{_abbreviated(notes[name])} for {name!r} instead of {expected}"


def _is_count(value: object) -> bool:
    # bool is a subclass of int.
    return type(value) is int and value >= 0


def _is_recorded(value: object) -> bool:
    if not isinstance(value, dict) or not all(isinstance(folder, dict) for folder in value.values()):
        return False
    policies = [workers for folder in value.values() for workers in folder.values()]
    return all(
        isinstance(workers, dict) and all(name.isdecimal() and _is_count(count) for name, count in workers.items())
        for workers in policies
    )


def _abbreviated(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def as_text(value: object) -> str:
    """Return a value that is no JSON as text for `Notes.identity`, the same in each process.

    >>> as_text([1])
    '[1]'
    """
    # Addresses differ from process to process.
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
