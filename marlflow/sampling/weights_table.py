"""A worker's table of weights: live policies, synchronized with the learner, and frozen versions for self-play.

A frozen entry has an id such as `main@3`, fixed weights, and its own actor and memory; its rows are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.policy.actor import Actor, EvaluationModes, mode_in
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.protocol import FrozenPolicy


class WeightsTable:
    """The policy slots of each entry, numbered: `live` first, then frozen ones in order of arrival."""

    def __init__(
        self,
        live: Sequence[PolicySlots],
        make_actors: Mapping[str, Callable[[], Actor]],
        publishing_critics: Collection[str],
    ) -> None:
        self.policy_slots = list(live)
        """By number; changed in place, so it may be shared."""
        self._live = {slots.policy: slots for slots in live}
        self._numbers = {slots.policy: number for number, slots in enumerate(live)}
        self._policy_of = {slots.policy: slots.policy for slots in live}
        self._make_actors, self._publishing_critics = make_actors, frozenset(publishing_critics)

    def __contains__(self, entry: object) -> bool:
        return entry in self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def live(self, policy: str) -> PolicySlots | None:
        """Return a live policy's slots, or None."""
        return self._live.get(policy)

    def number(self, entry: str | None) -> int | None:
        """Return an entry's number, or None."""
        return None if entry is None else self._numbers.get(entry)

    def add(self, frozen: Mapping[str, FrozenPolicy], lanes: int) -> None:
        """Add missing frozen entries, for a worker of `lanes` lanes.

        Raises ConfigInvalid if an entry's policy is not in the table.
        """
        for entry, frozen_policy in frozen.items():
            if entry in self._numbers:
                continue
            if (policy := self._live.get(frozen_policy.policy)) is None:
                known = ", ".join(self._live)
                problem = f"is of policy {frozen_policy.policy!r}, which no worker has; there are {known}"
                raise ConfigInvalid([f"frozen entry {entry!r} {problem}"])
            # An actor of its own: the live policy's actor is given new weights at every publish.
            actor = self._make_actors[frozen_policy.policy]()
            actor.set_schedule(frozen_policy.scheduled)
            slots = PolicySlots(entry, actor, policy.spaces, lanes, recorded=False)
            slots.load(frozen_policy.weights, frozen_policy.policy in self._publishing_critics)
            self._numbers[entry] = len(self.policy_slots)
            self._policy_of[entry] = frozen_policy.policy
            self.policy_slots.append(slots)

    def remove(self, entries: Collection[str], entry_of: Array) -> None:
        """Remove frozen entries that no lane uses, and renumber `entry_of` [lanes] (-1: none)."""
        remaining = [number for number, slots in enumerate(self.policy_slots) if slots.policy not in entries]
        # The extra last element maps -1 to -1.
        renumbered = np.full(len(self.policy_slots) + 1, -1)
        renumbered[remaining] = np.arange(len(remaining))
        entry_of[:] = renumbered[entry_of]
        # In place, because the vector runner shares the list.
        self.policy_slots[:] = [self.policy_slots[number] for number in remaining]
        self._numbers = {slots.policy: number for number, slots in enumerate(self.policy_slots)}
        self._policy_of = {entry: policy for entry, policy in self._policy_of.items() if entry in self._numbers}

    def for_evaluation(self, lanes: int, modes: EvaluationModes) -> WeightsTable:
        """Return the same entries and actors for `lanes` other lanes, without recording, acting in `modes`."""
        slots_of = [
            slots.for_evaluation(lanes, mode_in(modes, slots.policy, self._policy_of[slots.policy]))
            for slots in self.policy_slots
        ]
        return WeightsTable(slots_of, {}, ())
