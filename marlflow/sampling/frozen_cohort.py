"""A worker's frozen entries of one network: one call per tick for all of them, and their pending lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Actor, Mode, WeightedActor
from marlflow.policy.row_groups import RowGroups
from marlflow.policy.stacked import ActingMembers, members_of
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.protocol import FrozenPolicy


class CohortMembers:
    """The frozen entries of a cohort and their slots, shared by lanes of training and of evaluation.

    Every entry keeps a reference to its weights until `forget`. Only those in a slot can act.
    """

    def __init__(self, make: Callable[[], Actor], like: Actor, with_critic: bool) -> None:
        self.actors: ActingMembers = members_of(make, like)
        # A worker never evaluates the critic, so its part is cut off.
        self._actor_size = len(like.flat()) if with_critic and isinstance(like, WeightedActor) else None
        self._entries: dict[str, FrozenPolicy] = {}
        # The least recently seated first.
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        # The version in each slot, [slots].
        self.versions = np.zeros(0, np.int64)

    def add(self, entry: str, frozen: FrozenPolicy) -> None:
        """Add an entry and give it a slot; raises WeightsMismatch."""
        self._entries[entry] = frozen
        self.slot(entry)

    def slot(self, entry: str) -> int:
        """Return an entry's slot, for one more lane."""
        slot = self._slots.pop(entry, None)
        if slot is None:
            slot = self._load(self._entries[entry])
        self._slots[entry] = slot
        return slot

    def _load(self, frozen: FrozenPolicy) -> int:
        slot = self._free.pop() if self._free else len(self._slots)
        flat = frozen.weights.flat
        self.actors.load(slot, flat if self._actor_size is None else flat[: self._actor_size], frozen.scheduled)
        if slot == len(self.versions):
            self.versions = np.append(self.versions, 0)
        self.versions[slot] = frozen.weights.version
        return slot

    def in_slots(self) -> dict[int, FrozenPolicy]:
        """Return the entries that can act, by slot."""
        return {slot: self._entries[entry] for entry, slot in self._slots.items()}

    def forget(self, entry: str) -> None:
        """Remove an entry that no lane uses."""
        del self._entries[entry]
        self._give_up(entry)

    def trim(self, seated: Collection[int], most_idle: int) -> None:
        """Empty the least recently seated slots beyond `most_idle`, except those in `seated`."""
        idle = [entry for entry, slot in self._slots.items() if slot not in seated]
        for entry in idle[: max(0, len(idle) - most_idle)]:
            self._give_up(entry)

    def _give_up(self, entry: str) -> None:
        if (slot := self._slots.pop(entry, None)) is not None:
            self._free.append(slot)


class FrozenCohort(PolicySlots):
    """The pending lanes of frozen entries whose live policy has the slots `live`; records nothing.

    A lane's row is its member's slot.
    """

    in_order = False

    def __init__(
        self, name: str, live: PolicySlots, members: CohortMembers, lanes_of_worker: int, mode: Mode = "explore"
    ) -> None:
        # The live actor only says whether members have a memory.
        super().__init__(name, live.actor, live.spaces, lanes_of_worker, recorded=False, mode=mode)
        self.live, self.members = live, members
        self._groups = RowGroups.of(self.rows)

    def set_pending(self, where: Array, deciding: Array, row_of: Array) -> None:
        slots = row_of[deciding[where]]
        # By version, because slots are renumbered on resume, and batched products depend on the order of members.
        order = np.argsort((self.members.versions[slots] << _SLOT_BITS) + slots, kind="stable")
        super().set_pending(where[order], deciding, row_of)
        self._groups = RowGroups.of(slots[order])

    def act(self, memory: Array | None, generator: RowRandom) -> Acted:
        legal = self.seen.get("action_mask")
        acted = self.members.actors.act(self._groups, self.seen["obs"], legal, memory, self.mode, generator)
        self.draws = self.draws or generator.has_drawn
        return acted


_SLOT_BITS = 24
