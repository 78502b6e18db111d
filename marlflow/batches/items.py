"""Items that travel between stages: references to rows, weights, fragments, gradients and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from marlflow.base.arrays import Array
from marlflow.base.pickling import pickled_by_arguments


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class Weights:
    """Published weights under a unique version; `flat` is a float32 vector or, on Ray's driver, a reference."""

    version: int
    flat: Any


@dataclass(frozen=True, slots=True)
class Packed:
    """Batches, or references to them in Ray's object store (ObjectRef), with their number of rows.

    The driver never opens these rows: it passes the references on, and the next stage's place opens them.
    """

    rows: int
    payloads: tuple[Any, ...]
    keys: tuple[str, ...] = ()
    """One policy per payload, if they open as a mapping from policy to batch."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """The rows of one policy from one collect of one worker."""

    policy: str
    """In a joint stream, the stream's name."""
    worker: int
    round: int
    closes_round: bool
    """Whether it is the last fragment of its round."""
    rows: int
    rows_carried: int
    payloads: tuple[Any, ...]
    """The batch, or a reference to it."""
    keys: tuple[str, ...] = ()
    finished: tuple[Sequence[Any], ...] = ()
    """Per stage run on the workers: start and end time (seconds since the epoch), and number of output rows."""


@dataclass(frozen=True, slots=True)
class JointFragment(Fragment):
    """The rows of all policies of a joint learner, named `policy`; `keys` gives each payload's policy."""


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class Inserted:
    """The report of a replay buffer that received `rows` agent steps and now holds `stored`."""

    rows: int
    stored: int
    seats_left_early: int = 0
    """Agents of a team that were truncated before the others, whose further rewards are in no row."""


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class Update:
    """The report of one update of a learner."""

    learner: str
    rows: int
    """Agent steps trained on, repeats included."""
    updates: int
    """Optimizer steps."""
    version: int
    """The learner's before the update."""
    loss: Mapping[str, float] = field(default_factory=dict)
    staleness_mean: float = 0.0
    """In versions, over the rows."""
    stale_rows_dropped: int = 0
    rows_carried: int = 0
    rows_bootstrapped_at_death: int = 0
    updates_skipped: int = 0
    """Optimizer steps skipped because the gradient was not finite."""
    priorities: Array | None = None
    """By row, for the replay buffer, with `row_ids`."""
    row_ids: Array | None = None
    minibatches_left: int = 0
    """Minibatches that were not trained on, because the run's time was over, or a signal ended it."""
    compiles: int = 0
    compile_s: float = 0.0
    """Seconds of the calls that compiled."""
    note: str = ""
    """A message for the user, shown once."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """A learner's gradient over `rows` agent steps."""

    made_from: ClassVar[Mapping[str, str]] = {"EstimatedBatch": ".then(ComputeGradients(), at=learner)"}

    flat: Array
    """float32 [P], in the learner's parameter order."""
    rows: int
    loss: Mapping[str, float] = field(default_factory=dict)
    """The terms of the loss."""
    version_mean: float = 0.0
    """The rows' mean version; NaN without rows."""
    rows_carried: int = 0
    """Rows begun in the previous fragment."""
    rows_bootstrapped_at_death: int = 0


def as_it_is(value: Any) -> Any:
    """Return `value` unchanged, to open or pack payloads that are not references."""
    return value
