"""What running episodes can be played again from: the actions so far, and a running hash of what everybody saw.

Both cost an env step a few vector operations for all copies together. The hash of an observation is multilinear over
its 32-bit words (Lemire and Kaser, "Strongly universal string hashing is fast", 2014), exact for the bits of floats;
what an agent saw one after the other is folded together by SplitMix64.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces

from marlflow.base.batch import Array
from marlflow.base.random import key, mix
from marlflow.rollout.policy_slots import PolicySlots


class _Taken(NamedTuple):
    """What one policy's `lanes` did at one tick."""

    tick: int
    lanes: Array
    action: Array


class History:
    """Of the episodes that run in `copies` copies of `stride` lanes, as long as they have at most `most_env_steps`."""

    def __init__(self, copies: int, stride: int, most_env_steps: int) -> None:
        self.most_env_steps, self._stride = most_env_steps, stride
        self.hashes = np.zeros(copies * stride, np.uint64)
        self._tick = 0
        self._begun = np.zeros(copies, np.int64)  # the tick after which each copy's episode began here
        self._taken: dict[str, deque[_Taken]] = {}
        self._earlier: dict[int, Mapping[str, Array]] = {}  # of copies whose episode began in another process
        # By policy: the word that each column is read in, with a factor for each; the type that actions are kept in.
        self._words: dict[tuple[str, str], tuple[np.dtype[Any], Array]] = {}
        self._narrow: dict[str, np.dtype[Any] | None] = {}

    def begins(self, index: int, earlier: Mapping[str, Array] | None = None) -> None:
        """A copy's episode begins here; `earlier` are each policy's actions in it so far, if it began elsewhere."""
        self._begun[index] = self._tick
        self._earlier.pop(index, None)
        if earlier is not None:
            self._earlier[index] = earlier
        else:
            self.hashes[index * self._stride : (index + 1) * self._stride] = 0

    def saw(self, deciding: Array, players: Sequence[PolicySlots]) -> None:
        """The lanes `deciding` look at what their players are shown, and will decide."""
        self._tick += 1
        self.hashes[deciding] = self.looked(deciding, players)

    def looked(self, deciding: Array, players: Sequence[PolicySlots]) -> Array:
        """The hashes of `deciding` with what their players are shown now, uint64 [N]."""
        hashes: Array = self.hashes[deciding]
        for player in players:
            if not player.positions:
                continue
            for name, column in player.seen.items():
                if column.size:
                    digests = self._digests(player.policy, name, column)
                    if len(digests) == len(hashes):
                        hashes += digests
                    else:
                        hashes[player.where] += digests
        return mix(hashes)

    def _digests(self, policy: str, name: str, column: Array) -> Array:
        """One number for each row of a column of what `policy` sees, uint64 [N]."""
        rows = np.ascontiguousarray(column).reshape(len(column), -1)
        if (policy, name) not in self._words:
            word = _word(rows.shape[1] * rows.itemsize)
            self._words[policy, name] = word, _weights(name, rows.shape[1] * rows.itemsize // word.itemsize)
        word, weights = self._words[policy, name]
        digests: Array = rows.view(word).astype(np.uint64) @ weights
        return digests

    def took(self, player: PolicySlots, action: Array) -> None:
        """What the pending lanes of `player` did, [N, ...]; a copy is kept."""
        if player.policy not in self._narrow:
            self._narrow[player.policy] = _narrow(player.spaces.action)
        kept = action.astype(self._narrow[player.policy] or action.dtype)
        self._taken.setdefault(player.policy, deque()).append(_Taken(self._tick, player.lanes, kept))

    def forget(self, running: Mapping[int, int]) -> None:
        """Drops what no episode will be played again from; `running` has the env steps of each copy that is in one."""
        whole = self.whole(running)
        for index in [index for index in self._earlier if index not in whole]:
            del self._earlier[index]
        oldest = min((int(self._begun[index]) for index in whole), default=self._tick)
        for taken in self._taken.values():
            while taken and taken[0].tick <= oldest:
                taken.popleft()

    def drop(self, entries: Collection[str]) -> None:
        """Drops all that is known of entries that no running episode seats."""
        for entry in entries:
            self._taken.pop(entry, None)
            self._narrow.pop(entry, None)
        self._words = {key: words for key, words in self._words.items() if key[0] not in entries}

    def whole(self, running: Mapping[int, int]) -> list[int]:
        """The copies of `running` whose every action is kept."""
        return [index for index, env_steps in running.items() if env_steps <= self.most_env_steps]

    def actions(self, whole: Collection[int]) -> dict[str, tuple[Array, Array]]:
        """For each policy, all actions so far in the copies `whole`: the copy (int64 [N]) and the action, [N, ...].

        Those of one copy stand together, in the order in which they were taken.
        """
        policies = {*self._taken, *(policy for earlier in self._earlier.values() for policy in earlier)}
        return {policy: found for policy in sorted(policies) if (found := self._actions(policy, whole)) is not None}

    def _actions(self, policy: str, whole: Collection[int]) -> tuple[Array, Array] | None:
        parts = [
            (np.full(len(kept[policy]), index, np.int64), kept[policy])
            for index, kept in self._earlier.items()
            if index in whole and policy in kept
        ]
        if taken := self._taken.get(policy):
            copy = np.concatenate([one.lanes for one in taken]) // self._stride
            tick = np.repeat([one.tick for one in taken], [len(one.lanes) for one in taken])
            keep = np.isin(copy, list(whole)) & (tick > self._begun[copy])
            parts.append((copy[keep], np.concatenate([one.action for one in taken])[keep]))
        if not parts:
            return None
        copies, actions = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(copies, kind="stable")
        return copies[order], actions[order]


def _word(row_bytes: int) -> np.dtype[Any]:
    """The widest word, of 32 bits at most, that a row of so many bytes is made of."""
    return np.dtype(np.uint32 if row_bytes % 4 == 0 else np.uint16 if row_bytes % 2 == 0 else np.uint8)


def _weights(name: str, count: int) -> Array:
    """A random factor for each word of the column `name`."""
    return mix(np.uint64(key(*name.encode())) + np.arange(count, dtype=np.uint64)) | np.uint64(1)


def _narrow(space: gym_spaces.Space[Any]) -> np.dtype[Any] | None:
    """The smallest type that counts the actions of a Discrete space; None for others, whose own type stays."""
    return np.min_scalar_type(int(space.n) - 1) if isinstance(space, gym_spaces.Discrete) else None
