"""Action history and observation hashes, to replay and verify running episodes on resume.

Observations are hashed by a multilinear hash of their 32-bit words (Lemire and Kaser, "Strongly universal string
hashing is fast", 2014); successive hashes are combined by SplitMix64.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym_spaces

from marlflow.base.arrays import Array
from marlflow.base.random import key, mix
from marlflow.sampling.acting_policy import ActingPolicy


class _TickActions(NamedTuple):
    tick: int
    lanes: Array
    # The position of each lane among all that decided, because a cohort's lanes are in another order.
    where: Array
    action: Array


class History:
    """Actions and hashes of the running episodes of `num_envs` environments, of at most `most_env_steps` each."""

    def __init__(self, num_envs: int, stride: int, most_env_steps: int) -> None:
        self.most_env_steps, self._stride = most_env_steps, stride
        self.hashes = np.zeros(num_envs * stride, np.uint64)
        self._tick = 0
        # The tick before the first one of each environment's episode.
        self._start_tick = np.zeros(num_envs, np.int64)
        self._recorded: dict[str, deque[_TickActions]] = {}
        # Actions of resumed episodes from before the resume, by environment and policy.
        self._resumed: dict[int, Mapping[str, Array]] = {}
        # By policy and column: the word type and a factor per word; by policy: the dtype of stored actions.
        self._hash_words: dict[tuple[str, str], tuple[np.dtype[Any], Array]] = {}
        self._stored_dtypes: dict[str, np.dtype[Any] | None] = {}

    def begin_episode(self, index: int, earlier: Mapping[str, Array] | None = None) -> None:
        """Start an episode; `earlier` has each policy's actions so far if it was resumed."""
        self._start_tick[index] = self._tick
        self._resumed.pop(index, None)
        if earlier is not None:
            self._resumed[index] = earlier
        else:
            self.hashes[index * self._stride : (index + 1) * self._stride] = 0

    def observe(self, deciding: Array, acting_policies: Sequence[ActingPolicy]) -> None:
        """Hash the pending observations of the lanes `deciding`."""
        self._tick += 1
        self.hashes[deciding] = self.hashes_with_pending(deciding, acting_policies)

    def hashes_with_pending(self, deciding: Array, acting_policies: Sequence[ActingPolicy]) -> Array:
        """Return the hashes of `deciding` including the pending observations, uint64 [N]."""
        hashes: Array = self.hashes[deciding]
        for acting in acting_policies:
            if not acting.positions:
                continue
            for name, column in acting.seen.items():
                if column.size:
                    digests = self._digests(acting.policy, name, column)
                    if acting.in_order and len(digests) == len(hashes):
                        # One policy decides in all lanes, so no index is needed.
                        hashes += digests
                    else:
                        hashes[acting.where] += digests
        return mix(hashes)

    def _digests(self, policy: str, name: str, column: Array) -> Array:
        rows = np.ascontiguousarray(column).reshape(len(column), -1)
        if (policy, name) not in self._hash_words:
            row_bytes = rows.shape[1] * rows.itemsize
            # The widest word of at most 32 bits that divides a row.
            word = np.dtype(np.uint32 if row_bytes % 4 == 0 else np.uint16 if row_bytes % 2 == 0 else np.uint8)
            words = np.arange(row_bytes // word.itemsize, dtype=np.uint64)
            # Odd factors are invertible modulo 2**64.
            self._hash_words[policy, name] = word, mix(np.uint64(key(*name.encode())) + words) | np.uint64(1)
        word, weights = self._hash_words[policy, name]
        digests: Array = rows.view(word).astype(np.uint64) @ weights
        return digests

    def record_actions(self, acting: ActingPolicy, action: Array) -> None:
        """Store a copy of the actions of the pending lanes of `acting`."""
        if acting.policy not in self._stored_dtypes:
            space = acting.spaces.action
            self._stored_dtypes[acting.policy] = (
                np.min_scalar_type(int(space.n) - 1) if isinstance(space, gym_spaces.Discrete) else None
            )
        stored = action.astype(self._stored_dtypes[acting.policy] or action.dtype)
        self._recorded.setdefault(acting.policy, deque()).append(
            _TickActions(self._tick, acting.lanes, acting.where, stored)
        )

    def prune(self, running: Mapping[int, int]) -> None:
        """Drop actions that no replay needs, given the env steps of each running episode."""
        replayable = self.replayable(running)
        for index in [index for index in self._resumed if index not in replayable]:
            del self._resumed[index]
        oldest = min((int(self._start_tick[index]) for index in replayable), default=self._tick)
        for recorded in self._recorded.values():
            # Kept until the oldest running episode ends, because the actions of all environments share an entry per
            # tick.
            while recorded and recorded[0].tick <= oldest:
                recorded.popleft()

    def replayable(self, running: Mapping[int, int]) -> list[int]:
        """Return the environments in `running` whose actions were all kept."""
        return [index for index, env_steps in running.items() if env_steps <= self.most_env_steps]

    def actions(self, replayable: Collection[int]) -> dict[str, tuple[Array, Array]]:
        """Return each policy's actions in the environments `replayable`: environment (int64 [N]) and action [N, ...].

        Sorted by environment, then by time.
        """
        policies = {*self._recorded, *(policy for earlier in self._resumed.values() for policy in earlier)}
        found = {}
        for policy in sorted(policies):
            parts = [
                (np.full(len(actions_before[policy]), index, np.int64), actions_before[policy])
                for index, actions_before in self._resumed.items()
                if index in replayable and policy in actions_before
            ]
            if recorded := self._recorded.get(policy):
                env_indices = np.concatenate([step.lanes for step in recorded]) // self._stride
                tick = np.repeat([step.tick for step in recorded], [len(step.lanes) for step in recorded])
                in_episode = np.isin(env_indices, list(replayable)) & (tick > self._start_tick[env_indices])
                order = np.lexsort((np.concatenate([step.where for step in recorded]), tick))
                order = order[in_episode[order]]
                parts.append((env_indices[order], np.concatenate([step.action for step in recorded])[order]))
            if parts:
                env_indices, actions = (np.concatenate(columns) for columns in zip(*parts, strict=True))
                order = np.argsort(env_indices, kind="stable")
                found[policy] = env_indices[order], actions[order]
        return found
