"""Policies of other runs: where one is taken from, to begin with its parameters or to play against it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from marlflow.algorithms.algorithm import Algorithm, critic_sees
from marlflow.algorithms.scripted import ActsOnly
from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable, MarlflowError, Problem
from marlflow.base.ranges import StepsOrZero
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import OWN_OBSERVATION
from marlflow.policy.actor import Actor, AskedMode, WeightedActor
from marlflow.policy.torso import TorsoConfig

_Source = TypeVar("_Source", bound="FromRun | Frozen")


@dataclass(frozen=True)
class FromRun:
    """Begin with the parameters of a policy of another run (a warm start)."""

    run: str | Path  #: folder of the run, gallery:<name>, or a file of `marlflow league --export`
    #: one of its policies, or a member of its league, such as main@3; None: the one of the same name, or the only one
    policy: str | None = None
    checkpoint: Literal["best"] | StepsOrZero | None = None  #: env steps of its checkpoint, or best; None: the newest
    #: actor, critic (all parameters that do not act), or submodules, such as actor.torso; None: all that the source has
    parts: Sequence[str] | None = None
    #: classes outside marlflow that the source may be made of; needed unless this policy is made of them, too
    trust: Sequence[str] = ()
    copies: str | None = field(default=None, init=False, repr=False, compare=False)
    """A checkpoint of this run that has a copy, when it is resumed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", _as_text(self.run))


@dataclass(frozen=True)
class Frozen(ActsOnly):
    """Acts as a policy of another run, and does not learn.

    Checks before a run replace it with the network of the source.
    """

    name: ClassVar[str] = "frozen"

    run: str | Path  #: folder of the run, gallery:<name>, or a file of marlflow league --export
    #: one of its policies, or a member of its league, such as main@3; None: the one of the same name, or the only one
    policy: str | None = None
    checkpoint: Literal["best"] | StepsOrZero | None = None  #: env steps of its checkpoint, or best; None: the newest
    trust: Sequence[str] = ()  #: classes outside marlflow that it may be made of
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


@dataclass(frozen=True)
class SavedPolicy:
    """A policy apart from its run: its published parameters `flat`, float32 [P], and what they are, as plain data.

    `description` is JSON: `member`, `policy`, `algorithm`, `config` (the algorithm and model as configured),
    `observation_space`, `action_space`, `version`, `agent_steps`, `scheduled`, `stages`, `acts`, and more that is only
    shown. `source` names it in messages, such as `main@12 of runs/c4/a`. `network` has all parameters of its learner,
    float32 [Q], if that trains this policy alone and they were saved.
    """

    flat: Array = field(compare=False, repr=False)
    description: Mapping[str, Any]
    source: str
    network: Array | None = field(default=None, compare=False, repr=False)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the parameters, as little-endian float32."""
        return hashlib.sha256(self.flat.astype("<f4").tobytes()).hexdigest()

    @property
    def acts(self) -> AskedMode:
        """How the league of its run had it act in evaluation games."""
        acts: Any = self.description.get("acts")
        return acts if acts in {"greedy", "sampled"} else "as_learned"

    @property
    def spaces(self) -> tuple[str, str]:
        """Its observation and action space, as text."""
        return self.description["observation_space"], self.description["action_space"]


@dataclass(frozen=True)
class Imported(ActsOnly):
    """Acts as the policy `saved`, whose network is that of `algorithm`; learns nothing."""

    name: ClassVar[str] = "frozen"

    saved: SavedPolicy
    algorithm: Algorithm

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        acting: Any = self.algorithm
        if critic_sees(acting) != OWN_OBSERVATION:
            # Its critic is not used, and need not see anything here.
            acting = replace(acting, critic_sees=OWN_OBSERVATION)
        found = acting.validate(spaces, model)
        return [Problem(one, self.saved.source) if isinstance(one, str) else one for one in found]

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """Make an actor with the saved parameters; raises WeightsMismatch if they are of another network."""
        actor = self.algorithm.actor(spaces, model, seed)
        if not isinstance(actor, WeightedActor):
            raise MarlflowError(f"{self.saved.source} cannot act: {self.algorithm.name} has no parameters")
        flat = np.asarray(self.saved.flat, np.float32)
        # Where stages ran apart from the learner, the published parameters end with the critic's.
        stages = {**self.algorithm.stages, **self.saved.description.get("stages", {})}
        is_apart = any(where != "learner" for where in stages.values())
        actor.load_flat(flat[: len(actor.flat())] if is_apart else flat)
        actor.set_schedule(self.scheduled)
        return actor

    @property
    def scheduled(self) -> dict[str, float]:
        """The scheduled values by which it acts."""
        agent_steps = int(self.saved.description["agent_steps"])
        return {**self.algorithm.schedules(agent_steps), **self.saved.description["scheduled"]}


@dataclass(frozen=True, slots=True)
class InitialParameters:
    """Parameters by name (see `learner.parameters`), float32, from the policy `source` of another run.

    `about` says what that is: its algorithm, version and number of parameters. `sha256` is of all that it publishes.
    """

    tensors: Mapping[str, Array] = field(compare=False, repr=False)
    source: str
    about: str
    sha256: str

    @property
    def described(self) -> str:
        """Text such as `actor, critic of main of runs/c4/a (ppo, version 3, 9,000 parameters, SHA-256 ...)`."""
        parts = dict.fromkeys("actor" if name.startswith("actor.") else "critic" for name in self.tensors)
        return f"{' and '.join(parts)} of {self.source} ({self.about}, SHA-256 {self.sha256})"

    def to_bytes(self) -> bytes:
        """Return the content of a checkpoint's file."""
        text = {"source": self.source, "about": self.about, "sha256": self.sha256}
        return to_bytes({**text, "tensors": dict(self.tensors)})

    @classmethod
    def from_bytes(cls, data: bytes) -> InitialParameters:
        """Return what `to_bytes` was called on; raises CheckpointUnusable if it is malformed."""
        match from_bytes(data):
            case {"source": str(source), "about": str(about), "sha256": str(sha256), "tensors": dict(tensors)} if all(
                isinstance(tensor, np.ndarray) and tensor.dtype == np.float32 for tensor in tensors.values()
            ):
                return cls(tensors, source, about, sha256)
        raise CheckpointUnusable(["it has no source, hash and parameters that a policy begins with"])
