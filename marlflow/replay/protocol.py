"""The Replay protocol: what stages need from a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.items import Inserted
from marlflow.base.sequence_transitions import SequenceTransitions
from marlflow.flow import Place


class Replay(Protocol):
    """A replay buffer.

    inserted = replay.insert(fragment) transitions = replay.draw(agent_steps=64) replay.reprioritize(transitions.row_id,
    td_error_magnitudes)
    """

    @property
    def name(self) -> str:
        """The name in reports."""
        ...

    @property
    def place(self) -> Place | None:
        """Where its stages run; None: on the driver."""
        ...

    def insert(self, batch: Batch) -> Inserted:
        """Store the segments of `batch`, evicting the oldest if necessary."""
        ...

    def draw(self, agent_steps: int) -> Transitions | SequenceTransitions:
        """Sample `agent_steps` rows with replacement, as n-step transitions or sequences."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the scheduled values that it knows, by name."""
        ...

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        """Set priorities, [B], of drawn rows; rows evicted since are ignored."""
        ...
