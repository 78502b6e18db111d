"""What a plan's stages need of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from marlflow.base.batch import Array, Batch, Transitions
from marlflow.base.items import Inserted
from marlflow.base.sequence_transitions import SequenceTransitions
from marlflow.flow import Place


class Replay(Protocol):
    """A store of experience that is drawn from again and again.

    inserted = replay.insert(fragment)
    transitions = replay.draw(agent_steps=64)
    replay.reprioritize(transitions.row_id, td_error_magnitudes)
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def place(self) -> Place | None:
        """Where stages `at` it run; None: on the driver."""
        ...

    def insert(self, batch: Batch) -> Inserted:
        """Take the whole segments of `batch`; the oldest segments make room."""
        ...

    def draw(self, agent_steps: int) -> Transitions | SequenceTransitions:
        """What `agent_steps` rows make, with replacement: n-step transitions, or sequences."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Take the present values of what is scheduled, by name: those that it knows."""
        ...

    def reprioritize(self, row_ids: Array, priorities: Array) -> None:
        """Say how much what was drawn as these rows, [B], is worth drawing again; rows evicted since are ignored."""
        ...
