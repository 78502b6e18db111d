"""Utterances as rows of a replay buffer: an agent's tokens together are one action."""

from __future__ import annotations

import numpy as np

from marlflow.base.errors import InvalidInput
from marlflow.batches.batch import Batch, Transitions
from marlflow.batches.items import Inserted
from marlflow.batches.utterances import UtteranceLayout, spoken
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.sampling import Uniform


class UtteranceReplay(ReplayBuffer):
    """A replay buffer of utterances, which observations show as `layout` says; its agent steps are utterances."""

    __slots__ = ("layout",)

    def __init__(self, layout: UtteranceLayout, capacity: int, discount: float, seed: int, name: str) -> None:
        super().__init__(capacity, 1, discount, seed, Uniform(), name)
        self.layout = layout

    def insert(self, batch: Batch) -> Inserted:
        # A batch of few tokens may end no utterance.
        return super().insert(batch) if batch.rows else Inserted(0, self.stored)

    def draw(self, agent_steps: int) -> Transitions:
        if not self.stored:
            raise InvalidInput(["no utterance has ended in the first batch: raise batch_agent_steps"])
        return super().draw(agent_steps)


def utterances(batch: Batch, layout: UtteranceLayout) -> Batch:
    """Return a row for each utterance that ends in `batch`, in segments as its tokens.

    Its `obs` is the observation before the first token, its `action` all tokens, int64 [L], and its reward the last
    token's. The next observation of a segment's last utterance is its `bootstrap_obs`, before the first token of the
    next one. Raises InvalidInput as `spoken`.
    """
    said, lasts = spoken(batch, layout), batch.ends()
    rows = np.flatnonzero(said.ends)
    segment_of_row = np.repeat(np.arange(len(lasts)), batch.segments["length"])
    length = np.bincount(segment_of_row[rows], minlength=len(lasts))
    kept = np.flatnonzero(length)
    last = rows[np.cumsum(length[kept]) - 1]
    is_end = last == lasts[kept]
    # After the last whole utterance of a segment comes the first token of the next, or what follows the segment.
    obs, after = batch.columns["obs"], batch.segments["bootstrap_obs"][kept].copy()
    after[~is_end] = obs[last[~is_end] + 1]
    segments = {name: column[kept] for name, column in batch.segments.items()}
    segments |= {
        "length": length[kept],
        "terminated": segments["terminated"] & is_end,
        "truncated": segments["truncated"] & is_end,
        "bootstrap_obs": layout.silent(after),
    }
    names = ("reward", "version", "t_env", "t_agent")
    columns = {name: batch.columns[name][rows] for name in names if name in batch.columns}
    return Batch({"obs": layout.silent(obs[rows]), "action": said.after[rows], **columns}, segments)
