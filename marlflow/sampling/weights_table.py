"""A worker's table of weights: live policies, synchronized with the learner, and frozen versions for self-play.

A frozen entry has an id such as `main@3` and fixed weights; its rows are not recorded. Entries of one policy are a
cohort, which acts in one call for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.random import RowRandom
from marlflow.batches.items import Weights
from marlflow.policy.actor import Acted, Actor, EvaluationMode, EvaluationModes, Mode, WeightedActor, mode_in
from marlflow.policy.stacked import ActingMembers, CohortActor, RowGroups, members_of
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.population import WORKER_MEMBERS
from marlflow.sampling.protocol import FrozenPolicy

_SLOT_BITS = 24


class CohortMembers:
    """The frozen entries of a cohort and their slots, shared by lanes of training and of evaluation.

    Every entry keeps a reference to its weights until `forget`. Only members in a slot can act.
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
            frozen = self._entries[entry]
            slot, flat = self._free.pop() if self._free else len(self._slots), frozen.weights.flat
            self.actors.load(slot, flat if self._actor_size is None else flat[: self._actor_size], frozen.scheduled)
            if slot == len(self.versions):
                self.versions = np.append(self.versions, 0)
            self.versions[slot] = frozen.weights.version
        self._slots[entry] = slot
        return slot

    def in_slots(self) -> dict[int, FrozenPolicy]:
        """Return the entries that can act, by slot."""
        return {slot: self._entries[entry] for entry, slot in self._slots.items()}

    def forget(self, entry: str) -> None:
        """Remove an entry that no lane uses."""
        del self._entries[entry]
        self._give_up(entry)

    def trim(self, seated: Collection[int], most_idle: int) -> None:
        """Empty the least recently seated slots beyond `most_idle`, except the `seated` ones."""
        idle = [entry for entry, slot in self._slots.items() if slot not in seated]
        for entry in idle[: max(0, len(idle) - most_idle)]:
            self._give_up(entry)

    def _give_up(self, entry: str) -> None:
        if (slot := self._slots.pop(entry, None)) is not None:
            self._free.append(slot)


class FrozenCohort(ActingPolicy):
    """The pending lanes of frozen entries whose live policy acts as `live`; records nothing.

    A lane's row is its member's slot.
    """

    in_order = False

    def __init__(
        self, name: str, live: ActingPolicy, members: CohortMembers, lanes_of_worker: int, mode: Mode = "explore"
    ) -> None:
        # The live actor is used only to see whether members have a memory.
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


class Seat(NamedTuple):
    """The acting policy of a lane, by number, and its row there: in the buffer, or its member's slot in a cohort."""

    number: int
    row: int


class WeightsTable:
    """The acting policies of a worker, numbered: `live` first, then cohorts of frozen entries in order of arrival."""

    def __init__(
        self,
        live: Sequence[ActingPolicy],
        make_actors: Mapping[str, Callable[[], Actor]],
        publishing_critics: Collection[str],
        worker_members: int = WORKER_MEMBERS,
    ) -> None:
        self.acting_policies = list(live)
        """By number; changed in place, so it may be shared."""
        self.live = {acting.policy: acting for acting in live}
        """By policy."""
        self._numbers = {acting.policy: number for number, acting in enumerate(live)}
        # By frozen entry, in order of arrival, and by fixed policy.
        self._cohort_of: dict[str, FrozenCohort] = {}
        # By name.
        self._cohorts: dict[str, FrozenCohort] = {}
        self._make_actors, self._publishing_critics = make_actors, frozenset(publishing_critics)
        self._worker_members = worker_members

    def __contains__(self, entry: object) -> bool:
        return entry in self.live or entry in self._cohort_of

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.live, *self._cohort_of]))

    def seat(self, entry: str | None, lane: int) -> Seat | None:
        """Return the seat of the entry that plays `lane` from now on; None if the entry is not in the table."""
        if entry is None:
            return None
        if (cohort := self._cohort_of.get(entry)) is not None:
            return Seat(self._numbers[cohort.policy], cohort.members.slot(entry))
        if entry in self.live:
            buffer = self.live[entry].buffer
            return Seat(self._numbers[entry], 0 if buffer is None else buffer.row(lane))
        return None

    def join(self, scheduled: Mapping[str, Mapping[str, float]], lanes: int) -> None:
        """Let fixed policies with the same network act in one call, with their scheduled values."""
        first = next(iter(scheduled))
        live = self.live[first]
        cohort = FrozenCohort(f"{first}@*", live, CohortMembers(self._make_actors[first], live.actor, False), lanes)
        self._append(cohort)
        for number, (policy, values) in enumerate(scheduled.items()):
            actor = self.live[policy].actor
            assert isinstance(actor, WeightedActor)
            # Members act in the order of their versions, whichever slots they have.
            cohort.members.add(policy, FrozenPolicy(policy, Weights(number, actor.flat()), values))
            self._cohort_of[policy] = cohort

    def add(self, frozen: Mapping[str, FrozenPolicy], lanes: int) -> None:
        """Add missing frozen entries, for a worker of `lanes` lanes.

        Raises ConfigInvalid if an entry's policy is not in the table, and WeightsMismatch.
        """
        # Looked up one by one: entries that are here already need not be loaded.
        for entry in [entry for entry in frozen if entry not in self]:
            frozen_policy = frozen[entry]
            if (live := self.live.get(frozen_policy.policy)) is None:
                known = ", ".join(self.live)
                problem = f"is of policy {frozen_policy.policy!r}, which no worker has; there are {known}"
                raise ConfigInvalid([f"frozen entry {entry!r} {problem}"])
            cohort = self._cohort_for(frozen_policy, live, lanes)
            cohort.members.add(entry, frozen_policy)
            self._cohort_of[entry] = cohort

    def _cohort_for(self, frozen: FrozenPolicy, live: ActingPolicy, lanes: int) -> FrozenCohort:
        # Members of a cohort have the same scheduled values, by name.
        name = f"{frozen.policy}@({', '.join(sorted(frozen.scheduled))})"
        if name not in self._cohorts:
            # Separate actors, because the live policy's actor gets new weights at every publish.
            make, with_critic = self._make_actors[frozen.policy], frozen.policy in self._publishing_critics
            self._append(FrozenCohort(name, live, CohortMembers(make, live.actor, with_critic), lanes))
        return self._cohorts[name]

    def _append(self, cohort: FrozenCohort) -> None:
        self._numbers[cohort.policy] = len(self.acting_policies)
        self._cohorts[cohort.policy] = cohort
        self.acting_policies.append(cohort)

    def remove(self, entries: Collection[str]) -> None:
        """Remove frozen entries that no lane uses."""
        for entry in entries:
            self._cohort_of.pop(entry).members.forget(entry)

    def trim(self, entry_of: Array, row_of: Array) -> None:
        """Bound the memory of each cohort, given each lane's number and row, [lanes] (see `CohortMembers.trim`)."""
        for cohort in self._cohorts.values():
            seated = set(row_of[entry_of == self._numbers[cohort.policy]].tolist())
            cohort.members.trim(seated, self._worker_members)

    def for_evaluation(self, lanes: int, modes: EvaluationModes) -> WeightsTable:
        """Return the same entries and actors for `lanes` other lanes, without recording, acting in `modes`."""
        live = [acting.for_evaluation(lanes, mode_in(modes, name, name)) for name, acting in self.live.items()]
        table = WeightsTable(live, {}, ())
        for entry, cohort in self._cohort_of.items():
            policy = entry if entry in self.live else cohort.live.policy
            table._cohort_of[entry] = table._in_mode(cohort, mode_in(modes, entry, policy), lanes)
        return table

    def acted(self) -> dict[str, EvaluationMode]:
        """Return how each entry acted: `sampled` if its actor drew random numbers, `greedy` if it drew none.

        Entries that did not act, or whose actor is in another process, are left out.
        """
        modes: dict[str, EvaluationMode] = {}
        for entry in self:
            acting = self._cohort_of.get(entry) or self.live[entry]
            if acting.draws is not None and not isinstance(acting.actor, CohortActor):
                modes[entry] = "sampled" if acting.draws else "greedy"
        return modes

    def _in_mode(self, cohort: FrozenCohort, mode: Mode, lanes: int) -> FrozenCohort:
        # Entries of one cohort may act in two modes; they share its members.
        if (name := f"{cohort.policy} {mode}") not in self._cohorts:
            self._append(FrozenCohort(name, cohort.live, cohort.members, lanes, mode))
        return self._cohorts[name]
