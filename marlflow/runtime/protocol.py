"""What the layers above ask of a runtime; inline and Ray give the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from marlflow.learn.learner import LearnerState
from marlflow.learn.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.rollout.protocol import Workers
from marlflow.runtime.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Parts:
    """A run's parts, set up: what plans are built over."""

    workers: Workers
    learners: Mapping[str, Learner]
    replays: Mapping[str, Replay]


class Runtime(Protocol):
    """Sets parts up, and takes them down.

    with runtime: parts = runtime.start(spec)
    """

    def available(self) -> Mapping[str, float] | None:
        """What the machines have free, by Ray's names of resources; None if it is not known, or does not matter."""
        ...

    def start(self, spec: RunSpec) -> Parts:
        """Everything the spec asks for, ready. Raises ConfigInvalid if the machines cannot give it."""
        ...

    def learner_state(self, policy: str) -> LearnerState:
        """All parameters of a policy's learner; for keeping."""
        ...

    def close(self) -> None:
        """Ends everything it started; may be called twice."""
        ...
