"""Replay running episodes on resume, each in a new environment with its seed and recorded actions.

An episode continues if observations, turns and rewards equal the original's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.env import StepResult
from marlflow.sampling.action_history import History
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.episodes import EpisodeSource
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.rewards import WrongReward, amounts
from marlflow.sampling.saved_state import StateTable


class Differs(Exception):
    """The replay of an episode differs from the original."""


# The exceptions of a failed replay.
FAILURES = (Differs, EnvironmentFailed, ObservationOutside, WrongReward)


@dataclass(frozen=True, slots=True)
class EpisodeReplayer:
    """Replays episodes in the environments and lanes of a worker."""

    envs: EnvPool
    lanes: Lanes
    policy_slots: Sequence[PolicySlots]
    episodes: EpisodeSource
    history: History

    def begin(self, index: int, running: Mapping[str, Any]) -> StepResult:
        """Start an episode; raises one of FAILURES."""
        adapter, lanes = self.envs.adapters[index], self.lanes
        if running["agents"] is not None:
            # Undeclared agents get slots in order of appearance, which the checkpoint has.
            adapter.seat(running["agents"])
        turn = self.envs.reset(index, running["seed"])
        lanes.begin(index, running["episode"], running["matchup"], adapter, self.episodes)
        self.history.begins(index)
        self._receive(index, turn)
        return turn

    def play(
        self, index: int, running: Mapping[str, Any], actions: Mapping[str, Array], expected: StateTable
    ) -> StepResult:
        """Replay an episode with each policy's `actions`; raises one of FAILURES.

        `expected` has `returns`, `t_agent` and `hash` by slot.
        """
        turn = self.begin(index, running)
        choices = {
            slots.policy: iter(slots.choices(actions[slots.policy]))
            for slots in self.policy_slots
            if slots.policy in actions
        }
        for _ in range(running["env_steps"]):
            turn = self._step(index, turn, choices)
        self._compare(index, turn, expected)
        # An action is left over: an agent did not act as often as before.
        if any(next(left, None) is not None for left in choices.values()):
            raise Differs
        # Kept, so that the next checkpoint can replay the whole episode again.
        self.history.begins(index, actions)
        return turn

    def _step(self, index: int, turn: StepResult, choices: Mapping[str, Iterator[Any]]) -> StepResult:
        if turn.over:
            raise Differs
        deciding, hashes = self._looked(index, turn)
        self.history.hashes[deciding] = hashes
        self.lanes.t_agent[deciding] += 1
        policies = [self.policy_slots[number].policy for number in self.lanes.entry_of[deciding].tolist()]
        try:
            chosen = [next(choices[policy]) for policy in policies]
        except (KeyError, StopIteration):
            raise Differs from None
        after = self.envs.act(index, chosen)
        self._receive(index, after)
        return after

    def _looked(self, index: int, turn: StepResult) -> tuple[Array, Array]:
        deciding = np.array(turn.deciding, np.int64) + index * self.lanes.stride
        entry_of = self.lanes.entry_of[deciding]
        for number, slots in enumerate(self.policy_slots):
            slots.where = np.flatnonzero(entry_of == number)
            slots.positions = slots.where.tolist()
            if slots.positions:
                masks = [turn.masks[position] for position in slots.positions] if slots.spaces.masked else []
                seen = self.envs.states[index] if slots.sees_state else None
                state = None if seen is None else np.stack([seen] * len(slots.positions))
                slots.show([turn.observations[position] for position in slots.positions], masks, state)
        return deciding, self.history.looked(deciding, self.policy_slots)

    def _receive(self, index: int, turn: StepResult) -> None:
        adapter, lanes = self.envs.adapters[index], self.lanes
        if len(adapter.agents) > lanes.known[index]:
            lanes.welcome(index, adapter, self.episodes)
        for agent_slots, rewards in ((turn.reward_slots, turn.rewards), (turn.late_slots, turn.late_rewards)):
            if rewards:
                np.add.at(lanes.returns, np.array(agent_slots) + index * lanes.stride, amounts(rewards))

    def _compare(self, index: int, turn: StepResult, expected: StateTable) -> None:
        lanes = self.lanes.known_in([index])
        if turn.over or len(lanes) != len(expected["slot"]):
            raise Differs
        hashes = self.history.hashes.copy()
        deciding, looked = self._looked(index, turn)
        hashes[deciding] = looked
        actual = {"returns": self.lanes.returns, "t_agent": self.lanes.t_agent, "hash": hashes}
        if not all(np.array_equal(column[lanes], expected[name]) for name, column in actual.items()):
            raise Differs
