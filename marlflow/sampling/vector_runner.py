"""The vectorized environment loop of a worker: one call per policy and tick, for its lanes in all environments.

A tick costs a fixed number of vector operations; work per agent is done only when agents end or join.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.random import RowRandom
from marlflow.env import AgentEnd, StepResult
from marlflow.sampling.action_history import History
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.episodes import EpisodeSource
from marlflow.sampling.faults import EnvBroken
from marlflow.sampling.lanes import NO_EPISODE, Lanes
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.receipts import CompiledCalls, EpisodeResult
from marlflow.sampling.rewards import WrongReward, cost_values, reward_values
from marlflow.sampling.segment_builder import SegmentBuilder


class SyncVectorRunner:
    """Steps `envs` in lockstep, as Gymnasium's SyncVectorEnv and SB3's VecEnv do; no `builder` means no rows."""

    compiled: CompiledCalls = CompiledCalls()
    """What was compiled since the last receipt."""

    def __init__(
        self,
        envs: EnvPool,
        policy_slots: Sequence[PolicySlots],
        lanes: Lanes,
        episodes: EpisodeSource,
        builder: SegmentBuilder | None,
        history: History | None = None,
    ) -> None:
        self._envs, self._adapters = envs, envs.adapters
        self._policy_slots, self.lanes = policy_slots, lanes
        self._episodes = episodes
        self._builder, self._history = builder, history
        self._masked = any(slots.spaces.masked for slots in policy_slots)
        self._reads_costs = envs.reads_costs
        self._env_steps = np.zeros(len(self._adapters), np.int64)
        self._broken: dict[int, EnvironmentFailed] = {}
        self.halt()
        self.clear()

    def halt(self) -> None:
        """Leave every environment without an episode until `begin`."""
        self._step_results: list[StepResult] = [_IDLE] * len(self._adapters)
        self._lanes_of: list[list[int]] = [[] for _ in self._adapters]
        self._gather(steady=False)

    def clear(self) -> None:
        """Reset the results and counters of a collect."""
        self.results: list[EpisodeResult] = []
        self.env_steps = self.agent_steps = self.ticks = 0
        self.env_s = self.policy_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether no episode is running."""
        return not len(self._deciding)

    @property
    def running(self) -> dict[int, int]:
        """Env steps of each running episode, by environment."""
        running = [index for index, result in enumerate(self._step_results) if result is not _IDLE]
        return {index: self._adapters[index].env_steps for index in running}

    @property
    def deciding(self) -> Array:
        """The lanes waiting for an action, [N]."""
        return self._deciding

    def restore(self, step_results: Mapping[int, StepResult]) -> None:
        """Continue the replayed episodes in `step_results`."""
        for index, result in step_results.items():
            first = index * self.lanes.stride
            self._step_results[index], self._lanes_of[index] = result, [first + slot for slot in result.deciding]
            self._env_steps[index] = self._adapters[index].env_steps
        self._gather(steady=False)

    def begin(self) -> None:
        """Start the next episode of each idle environment, if any."""
        idle = [index for index, result in enumerate(self._step_results) if result is _IDLE]
        for index in idle:
            self._reset(index)
        if idle:
            self._gather(steady=False)

    def run(self, ticks: int, is_late: Callable[[], bool]) -> None:
        """Take `ticks` env steps in every environment; fewer if all are idle, or once `is_late`."""
        for _ in range(ticks):
            if self.idle:
                return
            self.tick()
            if is_late():
                return

    def tick(self) -> None:
        """Take one env step in every environment."""
        actions = self._decide()
        steady = self._receive(self._step(actions))
        if not steady:
            self._end_trajectories()
        self._gather(steady)

    def _decide(self) -> list[Any]:
        deciding, builder, lanes = self._deciding, self._builder, self.lanes
        self.agent_steps += len(deciding)
        t_agent = lanes.t_agent[deciding]
        cells = None
        if builder is not None:
            cells = builder.open_next(deciding, self._env_steps[self._deciding_env], t_agent)
        if self._history is not None:
            self._history.observe(deciding, self._policy_slots)
        # Counter-based: an agent's random numbers do not depend on the other lanes of the batch.
        random = RowRandom(lanes.keys[deciding], t_agent, self._deciding_env_indices)
        actions: list[Any] = [None] * len(deciding)
        for slots in self._acting:
            where, seen, memory = slots.where, slots.seen, slots.memory
            generator = random if slots.in_order and len(where) == len(deciding) else random.only(where)
            recalled = None if memory is None else memory.recall(slots.lanes)
            began = perf_counter()
            acted = slots.act(recalled, generator)
            self.policy_s += perf_counter() - began
            if memory is not None:
                seen = {**seen, **memory.update(slots.lanes, acted.memory, slots.version)}
            if slots.buffer is not None and cells is not None:
                slots.buffer.write(slots.rows, cells[where], seen, acted.action, acted.behavior_logp)
            for position, choice in zip(slots.positions, slots.choices(acted.action), strict=True):
                actions[position] = choice
            if self._history is not None:
                self._history.record_actions(slots, acted.action)
        t_agent += 1
        lanes.t_agent[deciding] = t_agent
        return actions

    def _step(self, actions: list[Any]) -> bool:
        """Step every environment; return whether all are steady: no agent ended or joined."""
        began = perf_counter()
        steady, offset, act, step_results = True, 0, self._envs.act, self._step_results
        for index, lanes in enumerate(self._lanes_of):
            if not lanes:
                continue
            end = offset + len(lanes)
            try:
                result = step_results[index] = act(index, actions[offset:end])
                if not result.steady:
                    steady = False
            except EnvironmentFailed as failure:
                steady = self._mark_broken(index, failure)
            offset = end
            self.env_steps += 1
        self.env_s += perf_counter() - began
        self._env_steps += 1
        self.ticks += 1
        return steady

    def _mark_broken(self, index: int, failure: EnvironmentFailed) -> bool:
        """Mark an episode as broken and return False; raise `failure` if over budget."""
        self._envs.faults.tolerate(failure)
        self._broken[index] = failure
        self._step_results[index] = _BROKEN
        return False

    def _receive(self, steady: bool) -> bool:
        """Add up rewards; return whether all environments are still steady."""
        while True:
            rewards: list[float] = []
            costs: list[Any] = []
            lanes: list[int] = []
            for index, result in enumerate(self._step_results):
                rewards += result.rewards
                costs += result.costs
                if not steady:
                    first = index * self.lanes.stride
                    lanes += self._lanes_of[index] if result.steady else [first + slot for slot in result.reward_slots]
            if not rewards:
                return steady
            # Steady environments gave exactly one reward per pending lane, in order.
            reward_lanes = self._deciding if steady else np.array(lanes)
            try:
                received, cost = self._values(reward_lanes, rewards, costs)
            except EnvBroken as broken:
                # A broken environment has no rewards, so the next pass skips it.
                steady = self._mark_broken(broken.index, broken.failure)
                continue
            np.add.at(self.lanes.returns, reward_lanes, received)
            if self._builder is not None:
                self._builder.add_rewards(reward_lanes, received)
            if cost is not None:
                np.add.at(self.lanes.costs, reward_lanes, cost)
                if self._builder is not None:
                    self._builder.add_costs(reward_lanes, cost)
            return steady

    def _values(self, lanes: Array, rewards: Sequence[float], costs: Sequence[Any] = ()) -> tuple[Array, Array | None]:
        """Return `rewards` as numbers, and the `costs` beside them, if there are any."""
        try:
            return reward_values(rewards), cost_values(costs, self.lanes.reads_costs[lanes]) if costs else None
        except WrongReward as wrong:
            raise self._env_broken(int(lanes[wrong.position]), wrong.reason) from None

    def _env_broken(self, lane: int, reason: str) -> EnvBroken:
        index, slot = divmod(lane, self.lanes.stride)
        adapter = self._adapters[index]
        return EnvBroken(index, EnvironmentFailed(adapter.where(adapter.agents[slot]), reason))

    def _end_trajectories(self) -> None:
        for index, result in enumerate(self._step_results):
            if result.steady or result is _BROKEN:
                continue
            try:
                self._end_agents(index, result)
            except EnvBroken as broken:
                self._mark_broken(index, broken.failure)
            except EnvironmentFailed as failure:
                self._mark_broken(index, failure)
        for index in sorted(self._broken):
            self._discard(index, self._broken.pop(index))

    def _end_agents(self, index: int, result: StepResult) -> None:
        adapter, lanes, first = self._adapters[index], self.lanes, index * self.lanes.stride
        if len(adapter.agents) > lanes.num_assigned[index]:
            lanes.assign_new_agents(index, adapter, self._episodes)
        for ending in result.ended:
            self._end(index, first + ending.slot, ending)
        if result.late_rewards:
            self._receive_without_row(first, result.late_slots, result.late_rewards)
        if result.over:
            self._finish(index, any(ending.truncated for ending in result.ended))
            self._reset(index)
        else:
            self._lanes_of[index] = [first + slot for slot in result.deciding]

    def _end(self, index: int, lane: int, ending: AgentEnd) -> None:
        if self._builder is None:
            return
        slots = self._policy_slots[self.lanes.entry_of[lane]]
        try:
            self._builder.end_segment(lane, ending, int(self.lanes.episode[lane]), slots, self._envs.states[index])
        except ObservationOutside as outside:
            raise self._env_broken(lane, f"the final {outside.reason}") from outside

    def _receive_without_row(self, first: int, agent_slots: Sequence[int], rewards: Sequence[float]) -> None:
        # Rewards after an agent's end or before its first action.
        lanes = np.array([first + slot for slot in agent_slots])
        received, _ = self._values(lanes, rewards)
        np.add.at(self.lanes.returns, lanes, received)
        if self._builder is not None:
            self._builder.add_late_rewards(lanes, received)

    def _finish(self, index: int, truncated: bool) -> None:
        adapter, lanes = self._adapters[index], self.lanes.of(index)
        env_index, costs = self._envs.env_indices[index], self._reads_costs
        self.results.append(self.lanes.result(index, env_index, adapter, self.ticks, truncated, reads_costs=costs))
        if self._builder is not None:
            self._builder.end_episode(lanes)
        # If the next reset fails, the rows of this finished episode must not be discarded with it.
        self.lanes.episode[lanes] = NO_EPISODE

    def _discard(self, index: int, failure: EnvironmentFailed) -> None:
        lanes = self.lanes.of(index)
        episode = int(self.lanes.episode[lanes.start])
        lost = 0 if self._builder is None else self._builder.discard(lanes, episode, self._policy_slots)
        self._envs.replace(index, failure, lost)
        self.lanes.unassign(index, {})
        self._reset(index)

    def _reset(self, index: int) -> None:
        """Start the environment's next episode (autoreset), if any, skipping failing resets."""
        self._step_results[index], self._lanes_of[index] = _IDLE, []
        while (episode := self._episodes.next(index)) is not None:
            began = perf_counter()
            try:
                self._begin(index, episode)
                return
            except EnvironmentFailed as error:
                failure = error
            except EnvBroken as broken:
                failure = broken.failure
            finally:
                self.env_s += perf_counter() - began
            self._envs.faults.tolerate(failure)
            # No rows are lost: the episode had not started.
            self._envs.replace(index, failure, 0)
            self.lanes.unassign(index, {})

    def _begin(self, index: int, episode: int) -> None:
        result = self._envs.reset(index, self._episodes.seed(index, episode), self._episodes.task(index))
        self._env_steps[index] = 0
        matchup = self._episodes.matchup(index, episode)
        self.lanes.begin(index, episode, matchup, self._adapters[index], self._episodes)
        if self._history is not None:
            self._history.begin_episode(index)
        # An AEC environment may have taken the dead step of an agent that was dead from the start.
        first = index * self.lanes.stride
        for agent_slots, rewards in ((result.reward_slots, result.rewards), (result.late_slots, result.late_rewards)):
            if rewards:
                self._receive_without_row(first, agent_slots, rewards)
        self._step_results[index], self._lanes_of[index] = result, [first + slot for slot in result.deciding]

    def _gather(self, steady: bool) -> None:
        while True:
            try:
                self._gather_once(steady)
                return
            except EnvBroken as broken:
                self._mark_broken(broken.index, broken.failure)
                steady = False
                self._discard(broken.index, self._broken.pop(broken.index))

    def _gather_once(self, steady: bool) -> None:
        observations: list[Any] = []
        masks: list[Array | None] = []
        for result in self._step_results:
            observations += result.observations
            if self._masked:
                masks += result.masks
        if not steady:
            self._assign_deciding()
        for slots in self._acting:
            seen = [observations[position] for position in slots.positions]
            seen_masks = [masks[position] for position in slots.positions] if self._masked else []
            state = None
            if slots.sees_state:
                state = np.stack([self._envs.states[i] for i in self.lanes.env_of[slots.lanes]])
            try:
                slots.set_observations(seen, seen_masks, state)
            except ObservationOutside as outside:
                raise self._env_broken(int(slots.lanes[outside.index]), f"the {outside.reason}") from outside

    def _assign_deciding(self) -> None:
        lanes: list[int] = []
        for env_lanes in self._lanes_of:
            lanes += env_lanes
        self._deciding = np.array(lanes, np.int64)
        self._deciding_env = self.lanes.env_of[self._deciding]
        self._deciding_env_indices = np.array(self._envs.env_indices, np.int64)[self._deciding_env]
        entry_of = self.lanes.entry_of[self._deciding]
        counts = np.bincount(entry_of, minlength=len(self._policy_slots)).tolist()
        for number, slots in enumerate(self._policy_slots):
            if counts[number] or len(slots.lanes) or slots.positions:
                slots.set_pending(np.flatnonzero(entry_of == number), self._deciding, self.lanes.row_of)
        self._acting = [slots for slots in self._policy_slots if slots.positions]


# The results of an environment without an episode, and of one whose episode broke.
_IDLE = StepResult()
_IDLE.steady = True
_BROKEN = StepResult()
