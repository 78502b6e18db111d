"""Stages that prepare rows for a replay, store them there, draw from it, and say how wrong the learner was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from marlflow.base.batch import Batch, Transitions
from marlflow.base.errors import InvalidInput
from marlflow.base.items import Fragment, Inserted, Update
from marlflow.flow import Traits
from marlflow.learn.priorities import transitions_of
from marlflow.learn.protocol import Learner
from marlflow.replay.n_step import terms_problems, windows
from marlflow.replay.protocol import Replay
from marlflow.replay.shards import shard_of
from marlflow.replay.splitting import sequence_problems, split


@dataclass(frozen=True, slots=True)
class NStep:
    """Sums the rewards of `n_step` rows from each row on (Sutton and Barto, 2nd edition, section 7.1).

    A window stops at its segment's end and bootstraps there with `discount`**k for the k steps it has, with 0 after
    termination. Raises InvalidInput unless `n_step` is at least 1 and `discount` in [0, 1].
    """

    traits: ClassVar[Traits] = Traits(movable="fragments")

    n_step: int
    discount: float

    def __post_init__(self) -> None:
        if broken := terms_problems(self.n_step, self.discount):
            raise InvalidInput([f"n-step windows: {problem}" for problem in broken])

    def __call__(self, batch: Batch) -> Batch:
        """`batch` with `window_reward`, `window_discount` (float32 [N]) and `window_steps`, which a replay stores."""
        segments = batch.segments
        found = windows(batch.columns["reward"], segments["length"], segments["terminated"], self.n_step, self.discount)
        return batch.with_columns(
            window_reward=found.reward.astype(np.float32),
            window_discount=found.discount.astype(np.float32),
            window_steps=found.steps,
        )


@dataclass(frozen=True, slots=True)
class SplitSegments:
    """Splits each segment into as few sequences of at most `length` rows as will do, of nearly equal size.

    Each row is in exactly one; a sequence also knows how many rows right before it, at most `burn_in` and of the same
    segment, are its burn-in, and what was remembered before the first of those (Kapturowski et al., 2019, section 2.3,
    https://openreview.net/forum?id=r1lyTjAqYX). It comes before NStep, whose windows then end with their sequence.
    Raises InvalidInput for wrong sizes, and for rows of a policy that remembers nothing.
    """

    traits: ClassVar[Traits] = Traits(movable="fragments")

    length: int
    burn_in: int

    def __post_init__(self) -> None:
        if broken := sequence_problems(self.length, self.burn_in):
            raise InvalidInput([f"sequences: {problem}" for problem in broken])

    def __call__(self, batch: Batch) -> Batch:
        """The same rows, in segments that are sequences: with `burn_in` (rows, int64) and `memory`, [S, ...] each."""
        if "memory" not in batch.columns:
            raise InvalidInput(["sequences need the column 'memory' of rows, which recurrent policies alone have"])
        return split(batch, self.length, self.burn_in)


@dataclass(frozen=True, slots=True)
class InitialPriorities:
    """How wrong the network that is here is about each row's n-step transition; it is its own target network.

    So new rows come to a prioritized replay with priorities of their own, and it need not take them all for the most
    important (Ape-X: Horgan et al., 2018, arXiv:1803.00933, section 3). It comes after NStep.
    """

    traits: ClassVar[Traits] = Traits(accepts=Batch | Fragment, movable="fragments")

    def __call__(self, batch: Batch, learner: Learner) -> Batch:
        """`batch` with `priority`, float32 [N]."""
        return batch.with_columns(priority=learner.priorities(transitions_of(batch)))


@dataclass(frozen=True, slots=True)
class Insert:
    """Stores every row, with its window (see NStep); says how many, which is what a pace in agent steps counts.

    Rows may come with a `priority` of their own (see InitialPriorities).
    """

    traits: ClassVar[Traits] = Traits(accepts=Fragment | Batch)

    def __call__(self, batch: Batch, replay: Replay) -> Inserted:
        """The count of what was stored."""
        return replay.insert(batch)


@dataclass(frozen=True, slots=True)
class Draw:
    """A source of what a replay `gives`, `agent_steps` at a time."""

    agent_steps: int
    gives: type = field(default=Transitions, repr=False)

    @property
    def traits(self) -> Traits:
        """It emits what the replay is of."""
        return Traits(emits=self.gives)

    def __call__(self, replay: Replay) -> Any:
        """The next draw, which is what the replay `gives`."""
        return replay.draw(self.agent_steps)


@dataclass(frozen=True, slots=True)
class Reprioritize:
    """Tells the replay how wrong the learner was about each row it drew."""

    def __call__(self, update: Update, replay: Replay) -> Update:
        """The report, unchanged."""
        if update.priorities is not None and update.row_ids is not None:
            replay.reprioritize(update.row_ids, update.priorities)
        return update


class ByShard:
    """Routes what a learner reports of a draw back to the shard of the replay that it came from, 0, 1, ..."""

    def __call__(self, update: Update) -> Iterator[tuple[int, Update]]:
        """The report, with its shard; one that names no rows goes to the first."""
        ids = update.row_ids
        yield (0 if ids is None or not len(ids) else shard_of(int(ids[0]))), update
