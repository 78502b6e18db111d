"""Stages that prepare and insert rows for a replay buffer, draw, and update priorities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import InvalidInput
from marlflow.batches.batch import Batch, Transitions
from marlflow.batches.items import Fragment, Inserted, Update
from marlflow.batches.joint import JointBatches
from marlflow.batches.joint_segments import JointSegments, TeamReward, joint_segments
from marlflow.flow import StageCall, Traits
from marlflow.flow.protocols import MOST_AHEAD, RunsAhead
from marlflow.learner.protocol import Learner
from marlflow.learner.value_chunks import transitions_of
from marlflow.replay.buffer import terms_problems, windows
from marlflow.replay.protocol import Replay, shard_of
from marlflow.replay.sequences import memory_columns, sequence_problems, split


@dataclass(frozen=True, slots=True)
class JoinSegments:
    """Joins a joint stream's batches as segments of joint rows, for a replay buffer of joint rows.

    `seats` has each policy's agent slots, such as `learner.seats`. The team's reward is the mean or the sum of the
    rewards of the agents that decided.
    """

    traits: ClassVar[Traits] = Traits(accepts=JointBatches)

    seats: Mapping[str, Sequence[int]]
    reward: TeamReward = "mean"

    @property
    def description(self) -> str:
        """The text in drawings."""
        seats = ", ".join(
            f"{policy}: {len(slots)} seat{'s' * (len(slots) != 1)}" for policy, slots in self.seats.items()
        )
        return f"JoinSegments({seats}, reward={self.reward})"

    # Any, because a Flow is typed alike whether its items are of one policy or of several.
    def __call__(self, batches: Any) -> JointSegments:
        return joint_segments(batches, self.seats, self.reward)


@dataclass(frozen=True, slots=True)
class NStep:
    """Computes n-step returns (Sutton and Barto, 2nd edition, section 7.1).

    A window stops at its segment's end. After k steps it bootstraps with `discount`**k, or 0 after termination. Raises
    InvalidInput unless `n_step` is at least 1 and `discount` in [0, 1].
    """

    traits: ClassVar[Traits] = Traits(movable="fragments")

    n_step: int
    discount: float

    def __post_init__(self) -> None:
        if broken := terms_problems(self.n_step, self.discount):
            raise InvalidInput([f"n-step windows: {problem}" for problem in broken])

    def __call__(self, batch: Batch) -> Batch:
        """Add `window_reward`, `window_discount` (float32 [N]) and `window_steps`."""
        segments = batch.segments
        n_step_windows = windows(
            batch.columns["reward"], segments["length"], segments["terminated"], self.n_step, self.discount
        )
        return batch.with_columns(
            window_reward=n_step_windows.reward.astype(np.float32),
            window_discount=n_step_windows.discount.astype(np.float32),
            window_steps=n_step_windows.steps,
        )


@dataclass(frozen=True, slots=True)
class SplitSegments:
    """Splits each segment into the fewest sequences of at most `length` rows, of similar size.

    A sequence has its burn-in, up to `burn_in` preceding rows of the segment, and the memory (recurrent state) before
    it (Kapturowski et al., 2019, section 2.3, https://openreview.net/forum?id=r1lyTjAqYX). Place it before NStep, whose
    windows then end with their sequence. Raises InvalidInput for invalid sizes and non-recurrent policies.
    """

    traits: ClassVar[Traits] = Traits(movable="fragments")

    length: int
    burn_in: int

    def __post_init__(self) -> None:
        if broken := sequence_problems(self.length, self.burn_in):
            raise InvalidInput([f"sequences: {problem}" for problem in broken])

    def __call__(self, batch: Batch) -> Batch:
        """Return sequences as segments, with `burn_in` (rows, int64) and `memory` [S, ...], or each `p:memory`."""
        if not memory_columns(batch):
            raise InvalidInput(["sequences need the column 'memory' of rows, which recurrent policies alone have"])
        return split(batch, self.length, self.burn_in)


@dataclass(frozen=True, slots=True)
class InitialPriorities:
    """Computes priorities of new rows: n-step TD errors, with the local network as target network.

    Otherwise they start with the largest priority (Ape-X: Horgan et al., 2018, arXiv:1803.00933, section 3). Place it
    after NStep. Rows are of one policy: joint rows are refused.
    """

    traits: ClassVar[Traits] = Traits(accepts=Batch | Fragment, movable="fragments")

    def __call__(self, batch: Batch, learner: Learner) -> Batch:
        """Add `priority`, float32 [N]; raises InvalidInput for joint rows."""
        if isinstance(batch, JointSegments):
            problem = "InitialPriorities is for rows of one policy, and these are joint rows"
            raise InvalidInput([f"{problem}; leave it out: new joint rows have the largest priority"])
        return batch.with_columns(priority=_or_least(learner.priorities(transitions_of(batch))))


@dataclass(frozen=True, slots=True)
class Insert:
    """Inserts rows with windows (NStep), perhaps with priorities (InitialPriorities)."""

    traits: ClassVar[Traits] = Traits(accepts=Fragment | Batch)

    def __call__(self, batch: Batch, replay: Replay) -> Inserted:
        return replay.insert(batch)


@dataclass(frozen=True, slots=True)
class Draw:
    """Samples `agent_steps` rows from a replay, in a batch of the type `gives`."""

    agent_steps: int
    gives: type = field(default=Transitions, repr=False)

    @property
    def traits(self) -> Traits:
        """The traits, with the type drawn."""
        return Traits(emits=self.gives)

    def __call__(self, replay: Replay) -> Any:
        return replay.draw(self.agent_steps)

    def ahead(self, replay: Any, after: Sequence[StageCall]) -> int:
        """Return how many draws it may make before the first is learned from: any number if they are uniform."""
        # A stage that runs ahead also depends on the stages after it.
        is_followed = bool(after) and isinstance(after[0].operator, RunsAhead)
        is_plain = type(self).__call__ is Draw.__call__
        return MOST_AHEAD if is_followed and is_plain and getattr(replay, "draws_uniformly", False) else 0

    def several(self, turns: Sequence[None], replay: Replay, after: Sequence[StageCall]) -> Sequence[Any]:
        """Return a draw for each turn."""
        return [self(replay) for _ in turns]


@dataclass(frozen=True, slots=True)
class Reprioritize:
    """Updates priorities with the errors of rows just learned from.

    Rows whose error is not finite, with which a learner skips an update, get the least priority, 0. Raises InvalidInput
    if rows are drawn by priority, and the loss gives none.
    """

    def __call__(self, update: Update, replay: Replay) -> Update:
        if update.row_ids is None:
            return update
        if update.priorities is not None:
            replay.reprioritize(update.row_ids, _or_least(update.priorities))
        elif (
            # Where minibatches were skipped or left out, a report has none either.
            update.updates
            and not (update.updates_skipped or update.minibatches_left)
            and getattr(replay, "draws_by_priority", False)
        ):
            raise InvalidInput(
                [
                    "the replay draws rows by priority, and the loss gives no priorities: return "
                    "LossTerms(total, terms, priorities) with one for each row, or draw uniformly"
                ]
            )
        return update


def _or_least(priorities: Array) -> Array:
    return np.where(np.isfinite(priorities), priorities, np.zeros_like(priorities))


class ByShard:
    """Routes a learner's report to the replay shard of its rows."""

    def __call__(self, update: Update) -> Iterator[tuple[int, Update]]:
        # Row ids encode their shard; all rows of a draw come from one shard. A report without rows goes to shard 0.
        ids = update.row_ids
        yield (0 if ids is None or not len(ids) else shard_of(int(ids[0]))), update
