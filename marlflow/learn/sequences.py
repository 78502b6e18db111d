"""The stage that cuts a batch into sequences, for the learner of a recurrent policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from marlflow.base.batch import EstimatedBatch
from marlflow.base.sequences import Sequences, cut_sequences
from marlflow.flow import Place
from marlflow.learn.protocol import Learner


@dataclass(frozen=True, slots=True)
class CutSequences:
    """Cuts segments into sequences of `length` rows, which a minibatch has as a whole; the last may be shorter."""

    learner: Learner = field(repr=False)
    length: int

    @property
    def place(self) -> Place | None:
        """Beside the learner."""
        return self.learner.place

    def __call__(self, batch: EstimatedBatch) -> Sequences:
        """The rows of `batch`, each in one sequence."""
        return cut_sequences(batch, self.length)
