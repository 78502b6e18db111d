"""Stages that treat an agent's tokens as utterances (ArCHer; Zhou et al., 2024, arXiv:2402.19446)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.batches.utterances import spoken
from marlflow.flow import Traits
from marlflow.learner.compute import tensors_on
from marlflow.learner.learner import TorchLearner
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.replay.utterances import UtteranceReplay, utterances


def utterance_advantages(batch: Batch, critic: TorchLearner) -> EstimatedBatch:
    """Return the tokens of `batch` whose utterance ends in it, with min Q(o, u) - min V(o) of their utterance u.

    `value` is min V(o), `value_target` min Q(o, u), and `advantage` their difference, float32 [N]. The tokens of other
    utterances are dropped. An utterance may end in a later segment of the same trajectory.
    """
    layout = critic.module.layout
    said = spoken(batch, layout)
    end = _ends_of(batch, said.ends)
    kept = end >= 0
    rows = np.flatnonzero(said.ends)
    silent = layout.silent(batch.columns["obs"][rows])
    number = np.searchsorted(rows, end[kept])
    q, v = _values(critic, layout.showing(silent, said.after[rows]), silent)
    shortened = _only(batch, kept)
    columns = {"value": v[number], "value_target": q[number], "advantage": (q - v)[number]}
    return EstimatedBatch({**shortened.columns, **columns}, shortened.segments)


def _ends_of(batch: Batch, ends: Array) -> Array:
    """Return the row that ends each row's utterance, [N]; -1 if it is not in the batch."""
    t_agent, lane, episode = batch.columns["t_agent"], batch["lane"], batch["episode"]
    order = np.lexsort((t_agent, episode, lane))
    place = np.arange(len(order))
    # The next end at or after each row, in the order of trajectories; len(order) if there is none.
    marked = np.where(ends[order], place, len(order))
    following = np.minimum.accumulate(marked[::-1])[::-1]
    found = np.full(len(order), -1)
    for_sure = np.flatnonzero(following < len(order))
    here, there = order[for_sure], order[following[for_sure]]
    steps = following[for_sure] - place[for_sure]
    same = (lane[here] == lane[there]) & (episode[here] == episode[there]) & (t_agent[there] - t_agent[here] == steps)
    found[here[same]] = there[same]
    return found


def _values(critic: TorchLearner, shown: Array, silent: Array) -> tuple[Array, Array]:
    if not len(shown):
        return np.zeros(0, np.float32), np.zeros(0, np.float32)
    tensor = tensors_on(critic.device)
    with torch.inference_mode():
        q, v = critic.module.critics.q(tensor(shown)).amin(0), critic.module.critics.v(tensor(silent)).amin(0)
    return q.cpu().numpy(), v.cpu().numpy()


def _only(batch: Batch, kept: Array) -> Batch:
    """Return the rows `kept` (bool [N]), the first ones of their segments, in segments cut after them."""
    if kept.all():
        return batch
    segments, firsts = batch.segments, batch.ends() + 1 - batch.segments["length"]
    length = np.add.reduceat(kept, firsts) if len(firsts) else segments["length"]
    is_cut = length < segments["length"]
    bootstrap = segments["bootstrap_obs"].copy()
    bootstrap[is_cut] = batch.columns["obs"][(firsts + length)[is_cut]]
    cut = {
        "length": length,
        "terminated": segments["terminated"] & ~is_cut,
        "truncated": segments["truncated"] & ~is_cut,
        "bootstrap_obs": bootstrap,
    }
    present = length > 0
    return Batch(
        {name: column[kept] for name, column in batch.columns.items()},
        {name: column[present] for name, column in {**segments, **cut}.items()},
    )


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
        estimated = utterance_advantages(batch, cast("TorchLearner", learner))
        estimated_by = np.full(len(estimated.segments["length"]), learner.version)
        return EstimatedBatch(estimated.columns, {**estimated.segments, "estimated_by": estimated_by})
