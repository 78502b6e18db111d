"""The stages of a plan that belong to a replay. They run where the replay is; neighbours are one call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from marlflow.base.batch import Batch, Transitions
from marlflow.base.errors import InvalidInput
from marlflow.base.items import Fragment, Inserted, Update
from marlflow.flow import Place
from marlflow.replay.n_step import terms_problems, windows
from marlflow.replay.protocol import Replay


@dataclass(frozen=True, slots=True)
class NStep:
    """Sums the rewards of `n_step` rows from each row on (Sutton and Barto, 2nd edition, section 7.1).

    A window stops at its segment's end and bootstraps there with `discount`**k for the k steps it has, with 0 after
    termination. Raises InvalidInput unless `n_step` is at least 1 and `discount` in [0, 1].
    """

    replay: Replay = field(repr=False)
    n_step: int
    discount: float
    by_segment: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if broken := terms_problems(self.n_step, self.discount):
            raise InvalidInput([f"n-step windows: {problem}" for problem in broken])

    @property
    def place(self) -> Place | None:
        """Beside the replay."""
        return self.replay.place

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
class Insert:
    """Stores every row, with its window (see NStep); says how many, which is what a pace in agent steps counts.

    Rows may come with a `priority` of their own (see InitialPriorities).
    """

    replay: Replay = field(repr=False)

    @property
    def place(self) -> Place | None:
        """Beside the replay."""
        return self.replay.place

    @property
    def accepts(self) -> object:
        """A fragment, which the place opens."""
        return Fragment | Batch

    def __call__(self, batch: Batch) -> Inserted:
        """What was stored."""
        return self.replay.insert(batch)


@dataclass(frozen=True, slots=True)
class Draw:
    """A source of what a replay `gives`, `agent_steps` at a time."""

    replay: Replay = field(repr=False)
    agent_steps: int
    gives: type = field(default=Transitions, repr=False)

    @property
    def place(self) -> Place | None:
        """Beside the replay."""
        return self.replay.place

    @property
    def emits(self) -> type:
        """What the replay is of."""
        return self.gives

    def __call__(self) -> Any:
        """The next draw, which is what the replay `gives`."""
        return self.replay.draw(self.agent_steps)


@dataclass(frozen=True, slots=True)
class Reprioritize:
    """Tells the replay how wrong the learner was about each row it drew."""

    replay: Replay = field(repr=False)

    @property
    def place(self) -> Place | None:
        """Beside the replay."""
        return self.replay.place

    def __call__(self, update: Update) -> Update:
        """The report, unchanged."""
        if update.priorities is not None and update.row_ids is not None:
            self.replay.reprioritize(update.row_ids, update.priorities)
        return update
