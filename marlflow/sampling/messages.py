"""Messages from workers to the driver."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Printed:
    """A line on standard output or error; `env` is the running environment, or ""."""

    worker: int
    env: str
    text: str


@dataclass(frozen=True, slots=True)
class Logged:
    """A log record, including its traceback."""

    worker: int
    env: str
    logger: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Number of lines printed or logged but not forwarded; `file` has the printed ones, if known."""

    worker: int
    lines: int
    file: str


@dataclass(frozen=True, slots=True)
class StepRunning:
    """An environment call at `where` has run for `running_s` seconds, and returned if `is_over`."""

    worker: int
    where: str
    running_s: float
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Silent:
    """The worker's process has sent nothing for `silent_s` seconds, not even an empty message."""

    worker: int
    silent_s: float


News: TypeAlias = Printed | Logged | LeftOut | StepRunning | Silent

_KINDS: dict[str, type[News]] = {kind.__name__: kind for kind in (Printed, Logged, LeftOut, StepRunning, Silent)}


def to_bytes(news: Iterable[News]) -> bytes:
    """Encode `news` as JSON."""
    return json.dumps([[type(message).__name__, asdict(message)] for message in news]).encode()


def from_bytes(data: bytes) -> list[News]:
    """Decode what `to_bytes` returned."""
    return [_KINDS[kind](**fields) for kind, fields in json.loads(data)]
