"""Where a policy of another run is taken from: to begin with its parameters, or to play against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from marlflow.algorithms.scripted import ActsOnly
from marlflow.base.errors import MarlflowError
from marlflow.base.ranges import StepsOrZero
from marlflow.base.spaces import Spaces
from marlflow.policy.actor import Actor
from marlflow.policy.torso import TorsoConfig

_Source = TypeVar("_Source", bound="FromRun | Frozen")


@dataclass(frozen=True)
class FromRun:
    """Begin with the parameters of a policy of another run (a warm start).

    `run` is the folder of a run, or a file of `marlflow league --export`. `policy` is one of its policies, or a member
    of its league such as `main@3`; None is the one of the same name, or the only one. `checkpoint` is its env steps, or
    `best`; None is the newest. `parts` are `actor`, `critic` (all parameters that do not act), or submodules such as
    `actor.torso`; None is all that the source has. Classes outside marlflow that the source is made of must be in
    `trust`, unless this policy is made of them.
    """

    run: str | Path
    policy: str | None = None
    checkpoint: Literal["best"] | StepsOrZero | None = None
    parts: Sequence[str] | None = None
    trust: Sequence[str] = ()
    copies: str | None = field(default=None, init=False, repr=False, compare=False)
    """A checkpoint of this run that has a copy, when it is resumed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", _as_text(self.run))


@dataclass(frozen=True)
class Frozen(ActsOnly):
    """Acts as a policy of another run, and does not learn; the arguments are as in FromRun.

    Checks before a run replace it with the network of the source.
    """

    name: ClassVar[str] = "frozen"

    run: str | Path
    policy: str | None = None
    checkpoint: Literal["best"] | StepsOrZero | None = None
    trust: Sequence[str] = ()
    copies: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", _as_text(self.run))

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """Raise MarlflowError: the checks of an experiment load the source."""
        raise MarlflowError(f"{self.policy or 'the policy'} of {self.run} has not been loaded")


def with_copies(source: _Source, checkpoint: Path) -> _Source:
    """Return the source, to be read from its copy in a checkpoint of the run that has it."""
    copied = replace(source)
    object.__setattr__(copied, "copies", str(checkpoint))
    return copied


def _as_text(run: str | Path) -> str | Path:
    # Wrong kinds stay, for the checks to report.
    return str(run) if isinstance(run, Path) else run
