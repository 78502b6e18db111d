"""Stages that select the rows of a batch or lay them out, where its learner is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marlflow.base.batch import Batch, EstimatedBatch
from marlflow.base.joint import JointBatch, JointBatches, join
from marlflow.base.sequences import Sequences, cut_sequences
from marlflow.flow import Traits
from marlflow.learn.protocol import Learner


@dataclass(frozen=True, slots=True)
class DropStale:
    """Drops rows sampled more than `max_staleness` versions ago, whole segments at a time, and counts them.

    A row carried over from the fragment before keeps its older version and is exempt (DESIGN, "Experience").
    """

    max_staleness: int

    @property
    def traits(self) -> Traits:
        """The learner reports the rows that are dropped, so it has to run there."""
        return Traits(
            max_staleness=self.max_staleness,
            keeps_segments=True,
            unmovable_because="its learner reports what it drops",
        )

    def __call__(self, batch: Batch, learner: Learner) -> Batch:
        """The segments of `batch` that are fresh enough."""
        oldest = batch.columns["version"].copy()
        firsts = batch.ends() + 1 - batch.segments["length"]
        carried = firsts[batch.segments["carried"]]
        oldest[carried] = np.iinfo(oldest.dtype).max
        stale = oldest < learner.version - self.max_staleness
        if not stale.any():
            return batch
        fresh = np.add.reduceat(stale, firsts) == 0
        kept = batch.only(fresh)
        learner.stale_rows_dropped += batch.rows - kept.rows
        return kept


@dataclass(frozen=True, slots=True)
class Join:
    """Lays the batches of a joint stream side by side: one joint row for each copy, episode and env step.

    `agents` fixes each policy's agent slots, where a network's input must not depend on who was there.
    """

    agents: Mapping[str, Sequence[int]] | None = None

    def __call__(self, batches: JointBatches) -> JointBatch:
        """The batches as one."""
        return join(batches, self.agents)


@dataclass(frozen=True, slots=True)
class CutSequences:
    """Cuts segments into sequences of `length` rows, which a minibatch has as a whole; the last may be shorter."""

    length: int

    def __call__(self, batch: EstimatedBatch) -> Sequences:
        """The rows of `batch`, each in one sequence."""
        return cut_sequences(batch, self.length)
