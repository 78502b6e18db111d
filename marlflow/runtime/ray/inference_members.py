"""Frozen policies with an inference actor: one call for all rows of a cohort, of any versions.

Workers with an inference actor receive weights by reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray

from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom
from marlflow.batches.items import Weights
from marlflow.policy.actor import Acted, Actor, Mode, WeightedActor
from marlflow.policy.stacked import ActingMembers, RowGroups, SeparateMembers, members_of
from marlflow.sampling.protocol import FrozenPolicy


class InferenceInput(NamedTuple):
    """The arguments of `Actor.act` for the rows of one call."""

    obs: Array
    action_mask: Array | None
    memory: Array | None
    generator: RowRandom

    @staticmethod
    def joined(parts: Sequence[InferenceInput]) -> InferenceInput:
        """Return the rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        return InferenceInput(
            np.concatenate([part.obs for part in parts]),
            _concatenated([part.action_mask for part in parts]),
            _concatenated([part.memory for part in parts]),
            RowRandom.joined([part.generator for part in parts]),
        )

    def ordered(self, order: Array) -> InferenceInput:
        """Return rows in another order."""
        mask = None if self.action_mask is None else self.action_mask[order]
        memory = None if self.memory is None else self.memory[order]
        return InferenceInput(self.obs[order], mask, memory, self.generator.only(order))


def _concatenated(parts: Sequence[Array | None]) -> Array | None:
    # All calls of a policy have this input, or none has.
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None


class MemberKey(NamedTuple):
    """A frozen version: its version, the weights' identity, and its scheduled values."""

    version: int
    weights: str
    schedule: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, weights: ByReference, scheduled: Mapping[str, float]) -> MemberKey:
        """Return the key of weights with their scheduled values."""
        (flat,) = weights.flat
        identity = flat.hex() if isinstance(flat, ray.ObjectRef) else ""
        return cls(weights.version, identity, tuple(sorted(scheduled.items())))


class CohortKey(NamedTuple):
    """The properties that calls for frozen versions must share to be in one batch."""

    policy: str
    mode: Mode


class CohortInput(NamedTuple):
    """The rows of one call for frozen versions: `members` [G], with `counts` [G] consecutive rows each."""

    members: tuple[MemberKey, ...]
    counts: tuple[int, ...]
    rows: InferenceInput


class RemoteMembers:
    """ActingMembers in a worker: the inference actor computes the rows of all of them in one call.

    `call` makes that call, and `send` gives the inference actor the weights of a member that it lacks.
    """

    def __init__(
        self,
        policy: str,
        call: Callable[[CohortKey, CohortInput], Any],
        send: Callable[[str, MemberKey, ByReference], Any],
    ) -> None:
        self._policy, self._call, self._send = policy, call, send
        self._members: dict[int, tuple[MemberKey, ByReference]] = {}

    def load(self, slot: int, flat: Any, scheduled: Mapping[str, float]) -> None:
        self._members[slot] = MemberKey.of(flat, scheduled), flat

    def act(
        self, groups: RowGroups, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom
    ) -> Acted:
        members = dict(self._members[slot] for slot in groups.slots.tolist())
        rows = InferenceInput(obs, action_mask, memory, generator)
        inputs = CohortInput(tuple(members), tuple(groups.counts.tolist()), rows)
        # The inference actor may have evicted some, or have been restarted: send these, then ask again.
        while not isinstance(answer := self._call(CohortKey(self._policy, mode), inputs), Acted):
            for missing in answer:
                self._send(self._policy, missing, members[missing])
        return answer


class HostedMembers:
    """The frozen versions of one policy in the inference actor, with room for `worker_members` for each worker.

    The least recently used make room for others. There is always room for the versions of one call of each worker.
    """

    def __init__(
        self, make: Callable[[], Actor], stacked: bool, with_critic: bool, num_workers: int, worker_members: int
    ) -> None:
        like = make()
        self._members: ActingMembers = members_of(make, like) if stacked else SeparateMembers(make)
        self._actor_size = len(like.flat()) if with_critic and isinstance(like, WeightedActor) else None
        self._num_workers, self._most = num_workers, num_workers * worker_members
        # The least recently used first.
        self._slots: dict[MemberKey, int] = {}

    def missing(self, members: Sequence[MemberKey]) -> list[MemberKey]:
        """Return the members that are not loaded, and make room for this many members of each worker."""
        self._most = max(self._most, self._num_workers * len(members))
        for member in members:
            if member in self._slots:
                self._slots[member] = self._slots.pop(member)
        return [member for member in members if member not in self._slots]

    def load(self, member: MemberKey, flat: Array) -> None:
        """Load a version, in place of the least recently used one if there is no room."""
        if member in self._slots:
            return
        is_full = len(self._slots) >= self._most
        slot = self._slots.pop(next(iter(self._slots))) if is_full else len(self._slots)
        self._members.load(slot, flat[: self._actor_size], dict(member.schedule))
        self._slots[member] = slot

    def act(self, parts: Sequence[CohortInput], mode: Mode) -> Acted:
        """Return actions for the rows of all parts, in order."""
        members = [member for part in parts for member in part.members]
        counts = [count for part in parts for count in part.counts]
        of_row = np.repeat(np.array([self._slots[member] for member in members]), counts)
        versions = np.repeat(np.array([member.version for member in members]), counts)
        # By version, as workers order them: batched products depend on the order of members.
        order = np.lexsort((of_row, versions))
        rows = InferenceInput.joined([part.rows for part in parts]).ordered(order)
        groups = RowGroups.of(of_row[order])
        acted = self._members.act(groups, rows.obs, rows.action_mask, rows.memory, mode, rows.generator)
        back = np.argsort(order)
        memory = None if acted.memory is None else acted.memory[back]
        return Acted(acted.action[back], acted.behavior_logp[back], memory)


def frozen_by_reference(frozen: Mapping[str, FrozenPolicy]) -> dict[str, FrozenPolicy]:
    """Replace the weights of frozen entries by references that workers do not fetch."""
    return {
        name: FrozenPolicy(
            entry.policy,
            Weights(entry.weights.version, ByReference(entry.weights.version, [entry.weights.flat])),
            entry.scheduled,
        )
        for name, entry in frozen.items()
    }


@dataclass(frozen=True, slots=True)
class ByReference:
    """Weights as sent to workers with an inference actor: a version and an object reference."""

    version: int
    flat: list[Any]
    """One object reference; Ray does not fetch references nested in a list."""


def by_reference(weights: Mapping[str, Weights]) -> dict[str, Weights]:
    """Replace weights by references that workers do not fetch."""
    return {name: Weights(new.version, ByReference(new.version, [new.flat])) for name, new in weights.items()}


def fetch_weights(flat: Any) -> Array:
    """Return published weights as an array, fetching a reference."""
    value = flat.flat[0] if isinstance(flat, ByReference) else flat
    array: Array = ray.get(value) if isinstance(value, ray.ObjectRef) else value
    return array
