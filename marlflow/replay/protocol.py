"""The Replay protocol, names of replays, and row numbers of sharded ones, which tell the shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from marlflow.base.arrays import Array
from marlflow.base.serialization import Tree
from marlflow.batches.batch import Batch, Decisions, Transitions
from marlflow.batches.items import Inserted
from marlflow.batches.sequences import SequenceTransitions
from marlflow.flow import Place

SHARD_SPAN = 2**52
"""Row numbers per shard, more than any run uses."""


class Replay(Protocol):
    """A replay buffer, as stages use it.

    inserted = replay.insert(batch)
    transitions = replay.draw(agent_steps=64)
    replay.reprioritize(transitions.row_id, td_errors)
    """

    @property
    def name(self) -> str:
        """The name in reports."""
        ...

    @property
    def place(self) -> Place | None:
        """The place of its stages; None is the driver."""
        ...

    def insert(self, batch: Batch) -> Inserted:
        """Store the segments of `batch`; the oldest make room."""
        ...

    def draw(self, agent_steps: int) -> Transitions | SequenceTransitions | Decisions:
        """Sample rows with replacement, as n-step transitions, sequences or single decisions."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set scheduled values by name; unknown names are ignored."""
        ...

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        """Set priorities, [B], of drawn rows; evicted ones are ignored."""
        ...


class SavedReplay(Replay, Protocol):
    """A replay buffer with its state, as algorithms make and runtimes keep it."""

    name: str
    place: Place | None

    @property
    def capacity(self) -> int:
        """The most agent steps that it holds."""
        ...

    @property
    def stored(self) -> int:
        """The agent steps stored."""
        ...

    def draw(self, agent_steps: int) -> Any: ...

    def state(self) -> Tree:
        """Return everything but the rows; `first` and `stop` are the range of their numbers."""
        ...

    def rows(self, first: int) -> Tree:
        """Return the rows with numbers from `first` on, and their range, `first` and `stop`; {} if there are none."""
        ...

    def load_state(self, state: Tree, rows: Sequence[Tree]) -> None:
        """Restore a state, with all results of `rows` up to then, in order."""
        ...

    def clear(self) -> None:
        """Remove all rows."""
        ...

    def begin_at(self, first_row_id: int) -> None:
        """Remove all rows; number new ones from `first_row_id`."""
        ...


def first_row_of(shard: int) -> int:
    """Return a shard's first row number."""
    return shard * SHARD_SPAN


def shard_of(row_id: int) -> int:
    """Return the shard of a row number."""
    return row_id // SHARD_SPAN


def replay_names(learner: str, shards: int) -> tuple[str, ...]:
    """Return the names of a learner's replays: the learner's own, or with several shards `prey@0`, `prey@1`, ..."""
    return (learner,) * shards if shards < 2 else tuple(f"{learner}@{shard}" for shard in range(shards))


def learner_of_replay(name: str) -> str:
    """Return the learner of a replay: `prey` for `prey@0`."""
    return name.partition("@")[0]
