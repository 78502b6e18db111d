"""Stages that treat an agent's tokens as utterances (ArCHer; Zhou et al., 2024, arXiv:2402.19446)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.flow import Traits
from marlflow.learner.protocol import Learner
from marlflow.learner.utterance_advantages import UtteranceCritic, utterance_advantages
from marlflow.replay.protocol import Replay
from marlflow.replay.utterances import UtteranceReplay, utterances


@dataclass(frozen=True, slots=True)
class Utterances:
    """Makes rows of whole utterances from rows of tokens, as the replay's layout says.

    An utterance that continues in a later batch is returned with that batch. A truncated utterance is dropped.
    """

    traits: ClassVar[Traits] = Traits(
        accepts=Batch, unmovable_because="its replay says how observations show utterances"
    )

    def __call__(self, batch: Batch, replay: Replay) -> Batch:
        return utterances(batch, cast("UtteranceReplay", replay).layout)


@dataclass(frozen=True, slots=True)
class UtteranceAdvantage:
    """Gives each token the advantage of its utterance, min Q - min V; drops tokens of unfinished utterances.

    All rows are dropped until the learner has taken `warm_up_updates` optimizer steps of its critics.
    """

    traits: ClassVar[Traits] = Traits(accepts=Batch, unmovable_because="its learner has the critics")

    warm_up_updates: int = 0

    def __call__(self, batch: Batch, learner: Learner) -> EstimatedBatch:
        """Add `value`, `advantage` and `value_target`."""
        if learner.updates < self.warm_up_updates:
            batch = batch.only(np.zeros(len(batch.segments["length"]), bool))
        estimated = utterance_advantages(batch, cast("UtteranceCritic", learner))
        estimated_by = np.full(len(estimated.segments["length"]), learner.version)
        return EstimatedBatch(estimated.columns, {**estimated.segments, "estimated_by": estimated_by})
