"""Items that travel between stages besides batches: weights, fragments, gradients and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from marlflow.base.batch import Array


@dataclass(frozen=True, slots=True)
class Weights:
    """Published weights under a unique version; `flat` is a float32 vector or, on Ray's driver, a reference."""

    version: int
    flat: Any


@dataclass(frozen=True, slots=True)
class Packed:
    """Batches, or references to them, with their number of rows.

    The driver passes them on unopened; the next stage's place opens them. With `keys`, one policy per payload, they
    open as a mapping from policy to batch.
    """

    rows: int
    payloads: tuple[Any, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fragment:
    """The rows of one policy from one collect of one worker.

    `payloads` holds the batch or a reference to it; `closes_round` marks the last fragment of its round. In a joint
    stream `policy` is the stream's name. `finished`, per stage run on the workers: start and end time (seconds since
    the epoch) and number of output rows.
    """

    policy: str
    worker: int
    round: int
    closes_round: bool
    rows: int
    rows_carried: int
    payloads: tuple[Any, ...]
    keys: tuple[str, ...] = ()
    finished: tuple[Sequence[Any], ...] = ()


@dataclass(frozen=True, slots=True)
class JointFragment(Fragment):
    """The rows of all policies of a joint learner, named `policy`; `keys` gives each payload's policy."""


@dataclass(frozen=True, slots=True)
class Inserted:
    """The report of a replay buffer that received `rows` agent steps and now holds `stored`."""

    rows: int
    stored: int


@dataclass(frozen=True, slots=True)
class Update:
    """The report of one update of a learner.

    `rows`: agent steps trained on, repeats included. `updates`: optimizer steps. `updates_skipped`: steps skipped
    because the gradient was not finite. `version`: the learner's before the update. `staleness_mean`: over the rows.
    `priorities` and `row_ids` are for the replay buffer.
    """

    learner: str
    rows: int
    updates: int
    version: int
    loss: Mapping[str, float] = field(default_factory=dict)
    staleness_mean: float = 0.0
    stale_rows_dropped: int = 0
    rows_carried: int = 0
    updates_skipped: int = 0
    priorities: Array | None = None
    row_ids: Array | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """A learner's gradient over `rows` agent steps.

    `flat` is float32 [P] in the learner's parameter order; `loss` has the terms; `version_mean` is the rows' mean
    version, NaN without rows; `rows_carried` were begun in the previous fragment.
    """

    made_from: ClassVar[Mapping[str, str]] = {"EstimatedBatch": ".then(ComputeGradients(), at=learner)"}

    flat: Array
    rows: int
    loss: Mapping[str, float] = field(default_factory=dict)
    version_mean: float = 0.0
    rows_carried: int = 0


def as_it_is(value: Any) -> Any:
    """Return `value` unchanged, to open or pack payloads that are not references."""
    return value
