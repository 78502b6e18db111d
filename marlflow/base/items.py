"""Items that travel between stages besides batches: weights, fragments, gradients and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from marlflow.base.batch import Array


@dataclass(frozen=True, slots=True)
class Weights:
    """Published weights: a version, never used twice, and the parameters that act.

    `flat` is one float32 vector, or a reference to it on the driver of a run over Ray.
    """

    version: int
    flat: Any


@dataclass(frozen=True, slots=True)
class Packed:
    """A number of rows and the batches that hold them, or references to those batches.

    The driver passes them on unopened; the place of the next stage opens them. For rows of several policies `keys`
    names the policy of each payload, and they are opened into a mapping from policy to batch.
    """

    rows: int
    payloads: tuple[Any, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fragment:
    """The rows of one policy from one collect of one worker, as the driver sees them.

    `payloads` holds the batch, or an unopened reference to it; `closes_round` says that it is its round's last. In a
    joint stream `policy` is the stream's name (see JointFragment). `finished` says of each
    stage of the policy's plan that runs on the workers when it began and ended (seconds since the epoch) and how many
    rows came out.
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
    """The rows of all policies of a joint learner from one collect of one worker; `keys` says whose each payload is.

    `policy` is the learner's name.
    """


@dataclass(frozen=True, slots=True)
class Inserted:
    """The report of a replay buffer that took `rows` agent steps and now holds `stored`."""

    rows: int
    stored: int


@dataclass(frozen=True, slots=True)
class Update:
    """The report of one update of a learner.

    `rows` counts agent steps trained on, each as often as it was used; `updates` counts optimizer steps, and
    `updates_skipped` those that were not taken because their gradient was not finite; `version` is
    the learner's when it began; `staleness_mean` is over the rows; `priorities` and `row_ids` go back to a replay.
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
    """The gradient of a loss over `rows` agent steps, by all parameters of a learner, to be applied by it.

    `flat` is float32 [P], in the learner's own order; `loss` has the terms; `version_mean` is the mean version by which
    the rows were chosen, NaN if there are none; `rows_carried` of them were begun in the fragment before.
    """

    made_from: ClassVar[Mapping[str, str]] = {"EstimatedBatch": ".then(ComputeGradients(), at=learner)"}

    flat: Array
    rows: int
    loss: Mapping[str, float] = field(default_factory=dict)
    version_mean: float = 0.0
    rows_carried: int = 0


def as_it_is(value: Any) -> Any:
    """Return the value: opens or packs payloads that are not references."""
    return value
