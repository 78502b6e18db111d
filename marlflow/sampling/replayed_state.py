"""Replay running episodes on resume, each in a new environment with its seed and recorded actions.

An episode continues if observations, turns and rewards equal the original's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.serialization import Tree
from marlflow.env import StepResult
from marlflow.sampling.action_history import History
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.env_source import WrongReward, info_values, last_values, reward_values
from marlflow.sampling.episodes import RESTARTED_EPISODE
from marlflow.sampling.saved_state import StateTable
from marlflow.sampling.worker_state import INFOS, TableByEnv, WorkerState

_ACTIONS = "actions."


class _Differs(Exception):
    """The replay of an episode differs from the original."""


# The exceptions of a failed replay.
_FAILURES = (_Differs, EnvironmentFailed, ObservationOutside, WrongReward)


@dataclass(frozen=True, slots=True)
class ReplayedState(WorkerState):
    """The state of a worker that replays its running episodes."""

    envs: EnvPool
    history: History

    def replayable(self) -> Collection[int]:
        return self.history.replayable(self.runner.running)

    def tables(self, running: Sequence[int]) -> dict[str, StateTable]:
        replayable, deciding = self.replayable(), self.runner.deciding
        checked, hashes = self.runner.lanes.assigned_in(replayable), self.history.hashes.copy()
        # Pending lanes have seen an observation that no action has followed yet, so a replay ends with it.
        hashes[deciding] = self.history.hashes_with_pending(deciding, self.acting_policies)
        tables = self.lane_tables(running, "lanes", checked, {"hash": hashes[checked]})
        env_indices = np.array(self.envs.env_indices, np.int64)
        for policy, (index, action) in self.history.actions(replayable).items():
            if len(index):
                tables[f"{_ACTIONS}{policy}"] = {"env": env_indices[index], "action": action}
        return tables

    def continue_episodes(
        self, running: Sequence[Tree], tables: Mapping[str, TableByEnv], replay_max_env_steps: int
    ) -> tuple[list[int], int]:
        results: dict[int, StepResult] = {}
        intact = []
        for env in running:
            index, saved = self.index(env), env["running"]
            # A replay needs every action so far, and takes as long as the episode did.
            replayable = saved["whole"] and saved["env_steps"] <= replay_max_env_steps
            if not replayable:
                # Rows of this episode were delivered already; the restarted one needs another number.
                saved = {**saved, "episode": saved["episode"] + RESTARTED_EPISODE}
            try:
                results[index] = (
                    self._replay(index, saved, tables, [env["env"]]) if replayable else self._begin(index, saved)
                )
            except _FAILURES:
                # The environment is not deterministic, or changed since: its next episode begins instead.
                self.runner.lanes.abandon(index)
                self.envs.discard([index])
            else:
                intact += [env["env"]] * replayable
        kept = {name: table.of(intact) for name, table in tables.items()}
        self.restore_open(kept)
        for index, result in results.items():
            self.envs.start(index, result)
        self.runner.resume()
        return intact, len(results) - len(intact)

    def _begin(self, index: int, running: Mapping[str, Any]) -> StepResult:
        """Start an episode; raises one of _FAILURES."""
        adapter, lanes = self.envs.adapters[index], self.runner.lanes
        result = self.envs.reset_one(index, running["seed"])
        lanes.begin(index, running["episode"], running["matchup"], adapter, self.episodes)
        self.history.begin_episode(index)
        self._receive(index, result, np.empty(0, np.int64))
        return result

    def _replay(
        self, index: int, running: Mapping[str, Any], tables: Mapping[str, TableByEnv], env_index: Sequence[int]
    ) -> StepResult:
        """Replay an episode with each policy's actions; raises one of _FAILURES."""
        result = self._begin(index, running)
        actions = {
            name.removeprefix(_ACTIONS): taken
            for name, table in tables.items()
            if name.startswith(_ACTIONS) and len(taken := table.of(env_index)["action"])
        }
        choices = {
            acting.policy: iter(acting.decoder.choices(actions[acting.policy]))
            for acting in self.acting_policies
            if acting.policy in actions
        }
        for _ in range(running["env_steps"]):
            result = self._step(index, result, choices)
        infos = tables[INFOS].of(env_index) if INFOS in tables else {}
        self._compare(index, result, tables["lanes"].of(env_index), infos)
        # An action is left over: an agent did not act as often as before.
        if any(next(unused, None) is not None for unused in choices.values()):
            raise _Differs
        # Kept, so that the next checkpoint can replay the whole episode again.
        self.history.begin_episode(index, actions)
        return result

    def _step(self, index: int, result: StepResult, choices: Mapping[str, Iterator[Any]]) -> StepResult:
        if result.over:
            raise _Differs
        deciding, hashes = self._hash_pending(index, result)
        self.history.hashes[deciding] = hashes
        self.runner.lanes.t_agent[deciding] += 1
        policies = [self.acting_policies[number].policy for number in self.runner.lanes.entry_of[deciding].tolist()]
        try:
            chosen = [next(choices[policy]) for policy in policies]
        except (KeyError, StopIteration):
            raise _Differs from None
        after = self.envs.act(index, chosen)
        self._receive(index, after, deciding)
        return after

    def _hash_pending(self, index: int, result: StepResult) -> tuple[Array, Array]:
        deciding = np.array(result.deciding, np.int64) + index * self.runner.lanes.stride
        entry_of = self.runner.lanes.entry_of[deciding]
        for number, acting in enumerate(self.acting_policies):
            acting.where = np.flatnonzero(entry_of == number)
            acting.positions = acting.where.tolist()
            if acting.positions:
                masks = [result.masks[position] for position in acting.positions] if acting.spaces.masked else []
                seen = self.envs.states[index] if acting.sees_state else None
                state = None if seen is None else np.stack([seen] * len(acting.positions))
                acting.set_observations([result.observations[position] for position in acting.positions], masks, state)
        return deciding, self.history.hashes_with_pending(deciding, self.acting_policies)

    def _receive(self, index: int, result: StepResult, acted: Array) -> None:
        adapter, lanes = self.envs.adapters[index], self.runner.lanes
        # As in a step: agents that joined get a policy afterwards.
        is_read = lanes.is_read
        if len(adapter.agents) > lanes.num_assigned[index]:
            lanes.assign_new_agents(index, adapter, self.episodes)
        for agent_slots, rewards in ((result.reward_slots, result.rewards), (result.late_slots, result.late_rewards)):
            if rewards:
                np.add.at(lanes.returns, np.array(agent_slots) + index * lanes.stride, reward_values(rewards))
        if result.infos and is_read is not None:
            received = np.array(result.reward_slots) + index * lanes.stride
            lives = np.isin(received, acted)
            infos = info_values(lanes.columns.stepped, result.infos, is_read[:, received], lives)
            lanes.add(received, np.zeros(len(received)), infos)
        if result.ended and (last := last_values(lanes.columns.last, [of.info for of in result.ended])) is not None:
            lanes.set_last(np.array([of.slot for of in result.ended]) + index * lanes.stride, last)

    def _compare(self, index: int, result: StepResult, expected: StateTable, infos: StateTable) -> None:
        lanes = self.runner.lanes.assigned_in([index])
        if result.over or len(lanes) != len(expected["slot"]):
            raise _Differs
        hashes = self.history.hashes.copy()
        deciding, pending_hashes = self._hash_pending(index, result)
        hashes[deciding] = pending_hashes
        actual = {"returns": self.runner.lanes.returns, "t_agent": self.runner.lanes.t_agent, "hash": hashes}
        for name, column in zip(self.runner.lanes.columns.names, self.runner.lanes.infos, strict=True):
            # Unknown for columns that were not read before, and for workers whose environments gave none.
            if len(infos.get(name, ())) and not np.array_equal(column[lanes], infos[name], equal_nan=True):
                raise _Differs
        if not all(np.array_equal(column[lanes], expected[name]) for name, column in actual.items()):
            raise _Differs
