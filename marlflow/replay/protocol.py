"""The Replay protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.items import Inserted
from marlflow.base.sequence_transitions import SequenceTransitions
from marlflow.flow import Place


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

    def draw(self, agent_steps: int) -> Transitions | SequenceTransitions:
        """Sample rows with replacement, as n-step transitions or sequences."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set scheduled values by name; unknown names are ignored."""
        ...

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        """Set priorities, [B], of drawn rows; evicted ones are ignored."""
        ...
