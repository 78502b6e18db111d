"""What a rollout worker tells the driver while it plays: lines printed or logged, and calls that take long."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Printed:
    """A line on standard output or standard error; `env` is the copy that was playing, "" for none."""

    worker: int
    env: str
    text: str


@dataclass(frozen=True, slots=True)
class Logged:
    """A record of Python's logging, with its traceback if it has one."""

    worker: int
    env: str
    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`lines` more were printed or logged than are passed on; all that was printed is in `file`, if that is known."""

    worker: int
    lines: int
    file: str


@dataclass(frozen=True, slots=True)
class StepRunning:
    """The call of an environment at `where` has been running for `running_s` seconds, or took that long: `is_over`."""

    worker: int
    where: str
    running_s: float
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Silent:
    """Nothing has come from the process of this worker for `silent_s` seconds, not even that it has nothing to tell."""

    worker: int
    silent_s: float


News: TypeAlias = Printed | Logged | LeftOut | StepRunning | Silent

_KINDS: dict[str, type[News]] = {kind.__name__: kind for kind in (Printed, Logged, LeftOut, StepRunning, Silent)}


def to_bytes(news: Iterable[News]) -> bytes:
    """`news` as JSON."""
    return json.dumps([[type(one).__name__, asdict(one)] for one in news]).encode()


def from_bytes(data: bytes) -> list[News]:
    """What `to_bytes` was given."""
    return [_KINDS[kind](**fields) for kind, fields in json.loads(data)]
