"""The stages of a plan that belong to a replay. They run where the replay is; neighbours are one call."""

from __future__ import annotations

from dataclasses import dataclass, field

from marlflow.base.batch import Batch, Transitions
from marlflow.base.items import Fragment, Inserted, Update
from marlflow.flow import Place
from marlflow.replay.protocol import Replay


@dataclass(frozen=True, slots=True)
class Insert:
    """Stores every row; says how many, which is what a pace in agent steps counts."""

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
    """A source of transitions, `agent_steps` at a time."""

    replay: Replay = field(repr=False)
    agent_steps: int

    @property
    def place(self) -> Place | None:
        """Beside the replay."""
        return self.replay.place

    def __call__(self) -> Transitions:
        """The next draw."""
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
