"""Stages that filter or rearrange rows at their learner; DropStale keeps on-policy rows fresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.batches.joint import JointBatch, JointBatches, join
from marlflow.batches.sequences import Sequences, cut_sequences
from marlflow.flow import Traits
from marlflow.learner.protocol import Learner


@dataclass(frozen=True, slots=True)
class DropStale:
    """Enforces on-policy freshness: drops stale rows, by policy version.

    Segments with a policy lag above `max_staleness` versions are dropped whole, and their rows counted. Rows carried
    over from the previous fragment may be older (docs/concepts.md).
    """

    max_staleness: int

    @property
    def traits(self) -> Traits:
        """The traits, with `max_staleness`."""
        return Traits(
            max_staleness=self.max_staleness, keeps_segments=True, unmovable_because="its learner reports what it drops"
        )

    def __call__(self, batch: Batch, learner: Learner) -> Batch:
        """Return the fresh segments."""
        oldest = batch.columns["version"].copy()
        firsts = batch.ends() + 1 - batch.segments["length"]
        carried = firsts[batch.segments["carried"]]
        # A carried row was sampled before the last publication by design; it never counts as stale.
        oldest[carried] = np.iinfo(oldest.dtype).max
        stale = oldest < learner.version - self.max_staleness
        if not stale.any():
            return batch
        fresh = np.add.reduceat(stale, firsts) == 0
        remaining = batch.only(fresh)
        learner.stale_rows_dropped += batch.rows - remaining.rows
        return remaining


@dataclass(frozen=True, slots=True)
class Join:
    """Joins a joint stream's batches: one row per environment, episode and env step.

    `agents` fixes each policy's agent slots, for network inputs that do not depend on which agents are present.
    """

    agents: Mapping[str, Sequence[int]] | None = None

    def __call__(self, batches: JointBatches) -> JointBatch:
        return join(batches, self.agents)


@dataclass(frozen=True, slots=True)
class CutSequences:
    """Cuts segments into sequences of `length` rows or fewer, which minibatches keep whole."""

    length: int

    def __call__(self, batch: EstimatedBatch) -> Sequences:
        return cut_sequences(batch, self.length)
