"""PettingZoo environments of one worker, stepped one by one under a watchdog; their dicts fill the table of lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.observations import row_dtype
from marlflow.env import AgentEnd, EnvAdapter, StepResult, open_adapter
from marlflow.env.make import EnvMaker
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.env_source import (
    EnvSource,
    Finals,
    LaneStep,
    WrongReward,
    info_values,
    last_values,
    reward_values,
    too_many_agents,
)
from marlflow.sampling.receipts import Fault, FaultLog
from marlflow.sampling.sampler_config import SamplerConfig
from marlflow.sampling.watchdog import Overdue, Watchdog, close_by, close_within

# Lanes per environment without `possible_agents`.
UNDECLARED_LANES = 256


class EnvPool(EnvSource):
    """Environments that are stepped one by one."""

    def __init__(self, config: SamplerConfig, env_indices: Sequence[int], watchdog: Watchdog, faults: FaultLog) -> None:
        super().__init__(config, env_indices, watchdog, faults)
        self._make_env = config.make_env
        self.adapters: list[EnvAdapter] = []
        try:
            with watchdog.on_guard():
                for env_index in self.env_indices:
                    self.adapters.append(self._open(env_index))
        except BaseException:
            # No object is returned that could be closed later.
            self.close(close_by())
            raise
        count = len(self.env_indices)
        self.stride = len(self.first.agents) if self.first.declared else UNDECLARED_LANES
        if self._sees_state and (space := self.first.state_space()) is not None:
            self.states = np.zeros((count, *space.shape), row_dtype(space))
        # Each environment's last result, and the lanes that act in it.
        self._results: list[StepResult] = [_IDLE] * count
        self._lanes_of: list[list[int]] = [[] for _ in self.adapters]
        self._actions: list[Any] = []
        # The observations and masks of all lanes that wait; None if they must be gathered again.
        self._waiting: tuple[list[Any], list[Array | None]] | None = None
        # How lanes ended in the last step.
        self._ends: dict[int, AgentEnd] = {}
        self._to_reopen: set[int] = set()
        # The counts of environments that were closed.
        self._of_closed = np.zeros(2, np.int64)

    @property
    def counts(self) -> Array:
        counts: Array = np.array([_counts_of(adapter) for adapter in self.adapters], np.int64).sum(axis=0)
        return self._of_closed + counts

    def seated(self, index: int) -> list[str] | None:
        adapter = self.adapters[index]
        return None if adapter.declared or index in self._to_reopen else list(adapter.agents)

    def seat(self, index: int, agents: Sequence[str]) -> None:
        # An environment may not know the spaces of absent agents; then agents get slots when they appear.
        with suppress(EnvironmentFailed):
            self.adapters[index].seat(agents)

    def appeared(self, index: int) -> set[int] | None:
        return self.adapters[index].appeared()

    def failure(self, index: int, slot: int | None, reason: str) -> EnvironmentFailed:
        adapter = self.adapters[index]
        return EnvironmentFailed(adapter.where(None if slot is None else adapter.agents[slot]), reason)

    def halt(self, indices: Array) -> None:
        for index in indices.tolist():
            self._results[index], self._lanes_of[index] = _IDLE, []
        self.is_running[indices] = False
        self._waiting = None

    def discard(self, indices: Sequence[int]) -> None:
        self._to_reopen.update(indices)

    def deciding(self) -> Array:
        lanes = [*chain.from_iterable(self._lanes_of)]
        self._actions = [None] * len(lanes)
        return np.array(lanes, np.int64)

    def seen(self, acting: ActingPolicy) -> tuple[Any, Any, Array | None]:
        if self._waiting is None:
            results = self._results
            observations = [*chain.from_iterable([result.observations for result in results])]
            self._waiting = observations, [*chain.from_iterable([result.masks for result in results])]
        observations, masks = self._waiting
        in_order = acting.in_order and len(acting.positions) == len(observations)
        return (
            observations if in_order else [observations[position] for position in acting.positions],
            [masks[position] for position in acting.positions] if acting.spaces.masked else [],
            self.states[acting.lanes // self.stride] if acting.sees_state else None,
        )

    def clear_actions(self) -> None:
        # All lanes are written again, into the list that `deciding` has made.
        return

    def put_actions(self, acting: ActingPolicy, action: Array) -> None:
        actions = self._actions
        if acting.in_order and len(acting.positions) == len(actions):
            actions[:] = acting.decoder.choices(action)
            return
        for position, choice in zip(acting.positions, acting.decoder.choices(action), strict=True):
            actions[position] = choice

    def step(self, deciding: Array, is_read: Array | None) -> LaneStep:
        began, step = perf_counter(), LaneStep(steady=True)
        offset, actions, lanes_of = 0, self._actions, self._lanes_of
        received = _Received()
        for index, lanes in enumerate(lanes_of):
            if not lanes:
                continue
            end = offset + len(lanes)
            try:
                result = self._results[index] = self.act(index, actions[offset:end])
                if result.steady:
                    received.lanes += lanes
                else:
                    self._change(index, result, received, step)
                received.rewards += result.rewards
                received.infos += result.infos
            except EnvironmentFailed as failure:
                step.broken[index], step.steady = failure, False
            offset = end
        self.env_s += perf_counter() - began
        self.env_steps += 1
        self._waiting = None
        # Steady environments gave exactly one reward per lane that acted, in order.
        rewarded = deciding if step.steady else np.array(received.lanes, np.int64)
        acted = None if is_read is None or step.steady else np.isin(rewarded, deciding)
        amounts = self._amounts(rewarded, received.rewards, received.infos, is_read, step.broken, acted)
        step.lanes, step.rewards, step.infos = amounts
        step.steady = step.steady and not step.broken
        self._ends = received.ends
        if self._ends:
            step.ended = np.array([*self._ends], np.int64)
            step.terminated = np.array([ending.terminated for ending in self._ends.values()], bool)
        if received.last and (last := last_values(self.columns.last, [*received.last.values()])) is not None:
            step.last = np.array([*received.last], np.int64), last
        if received.late:
            lanes_of_late = np.array(received.late_lanes, np.int64)
            step.late_lanes, step.late_rewards, _ = self._amounts(lanes_of_late, received.late, [], None, step.broken)
        return step

    def _change(self, index: int, result: StepResult, received: _Received, step: LaneStep) -> None:
        """Take an environment's ends, late rewards and next lanes from a result that is not steady."""
        first, step.steady = index * self.stride, False
        if len(self.adapters[index].agents) > self.stride:
            # Their lanes would be of the next environment.
            raise self.failure(index, None, too_many_agents(self.stride))
        received.lanes += [first + slot for slot in result.reward_slots]
        for ending in result.ended:
            received.ends.setdefault(first + ending.slot, ending)
            received.last[first + ending.slot] = ending.info
        if result.last_infos:
            received.last |= {first + slot: info for slot, info in result.last_infos.items()}
        if result.late_rewards:
            received.late_lanes += [first + slot for slot in result.late_slots]
            received.late += result.late_rewards
        if result.over:
            step.over.append(index)
        self._lanes_of[index] = [first + slot for slot in result.deciding]

    def _amounts(
        self,
        lanes: Array,
        rewards: list[Any],
        infos: list[Mapping[str, Any] | None],
        is_read: Array | None,
        broken: dict[int, EnvironmentFailed],
        acted: Array | None = None,
    ) -> tuple[Array, Array, Array | None]:
        """Return lanes, rewards and stepped columns as numbers, without environments that gave a wrong number."""
        while len(lanes):
            try:
                numbers = reward_values(rewards)
                if not infos or is_read is None:
                    return lanes, numbers, None
                lives = np.ones(len(lanes), bool) if acted is None else acted
                return lanes, numbers, info_values(self.columns.stepped, infos, is_read[:, lanes], lives)
            except WrongReward as wrong:
                index, slot = divmod(int(lanes[wrong.position]), self.stride)
                broken[index] = self.failure(index, slot, wrong.reason)
                kept = np.flatnonzero(lanes // self.stride != index)
                lanes, rewards = lanes[kept], [rewards[at] for at in kept]
                infos = [infos[at] for at in kept] if infos else []
                acted = None if acted is None else acted[kept]
        return lanes, np.empty(0), None

    def finals(self, acting: ActingPolicy, lanes: Array) -> Finals:
        ends = [*map(self._ends.__getitem__, lanes.tolist())]
        given = [at for at, ending in enumerate(ends) if ending.observation is not None]
        try:
            seen = {"obs": acting.stack([ends[at].observation for at in given])}
            if acting.spaces.masked:
                none = np.zeros(acting.spaces.mask_width, np.bool_)
                masks = [none if ends[at].mask is None else ends[at].mask for at in given]
                seen["action_mask"] = acting.stack_masks(masks)
        except ObservationOutside as outside:
            raise ObservationOutside(given[outside.index], outside.reason) from outside
        if acting.sees_state:
            seen["state"] = self.states[lanes // self.stride]
        return Finals(seen, None if len(given) == len(ends) else ~np.isin(np.arange(len(ends)), given))

    def act(self, index: int, actions: Sequence[Any]) -> StepResult:
        """Step one environment; raises EnvironmentFailed."""
        # `_call` written out, because this runs for every env step.
        adapter, watchdog = self.adapters[index], self.watchdog
        watchdog.begun += 1
        watchdog.playing, watchdog.doing = adapter, "step()"
        try:
            try:
                watchdog.inside = True
                result = adapter.act(actions)
                if self._sees_state:
                    self.states[index] = adapter.state()
            finally:
                watchdog.inside = False
        except Overdue as overdue:
            raise watchdog.hung_error(adapter.where(), "step()", overdue) from None
        return result

    def reset(self, indices: Array, seeds: Array, tasks: Sequence[int | None]) -> LaneStep:
        began, step = perf_counter(), LaneStep()
        lanes: list[int] = []
        rewards: list[Any] = []
        for index, seed, task in zip(indices.tolist(), seeds.tolist(), tasks, strict=True):
            if index in self._to_reopen:
                self._reopen(index)
            if not (adapter := self.adapters[index]).declared and len(adapter.agents) > self.stride // 2:
                # Each episode may have agents of other names.
                adapter.forget_agents()
            try:
                result = self.reset_one(index, seed, task)
            except EnvironmentFailed as failure:
                step.broken[index] = failure
                continue
            self.start(index, result)
            # An AEC environment may have taken the dead step of an agent that was dead from the start.
            lanes += [index * self.stride + slot for slot in (*result.reward_slots, *result.late_slots)]
            rewards += [*result.rewards, *result.late_rewards]
        step.late_lanes, step.late_rewards, _ = self._amounts(np.array(lanes, np.int64), rewards, [], None, step.broken)
        self.env_s += perf_counter() - began
        return step

    def start(self, index: int, result: StepResult) -> None:
        """Continue an episode from `result`."""
        self._results[index], self._lanes_of[index] = result, [index * self.stride + slot for slot in result.deciding]
        self.env_steps[index], self.is_running[index] = self.adapters[index].env_steps, True
        self._waiting = None

    def reset_one(self, index: int, seed: int, task: int | None = None) -> StepResult:
        """Start an episode, with a task number if given; raises EnvironmentFailed."""
        self.seeds[index] = seed
        adapter = self.adapters[index]

        def reset_adapter() -> StepResult:
            result = adapter.reset(seed, task)
            if self._sees_state:
                self.states[index] = adapter.state()
            return result

        return self._call(reset_adapter, adapter, "reset()")

    def _reopen(self, index: int) -> None:
        """Reopen an environment that broke; raises EnvironmentFailed if that fails too often."""
        broken = self.adapters[index]
        self._of_closed = self._of_closed + _counts_of(broken)
        if (fault := close_within(broken.close, broken.where(), self.watchdog.timeout_s)) is not None:
            self.faults.report(fault)
        self.adapters[index] = self._until_opened(lambda: self._open(self.env_indices[index]))
        self._to_reopen.discard(index)

    def _open(self, env_index: int) -> EnvAdapter:
        opening = _EnvBeingMade(env_index)
        make_env = self._make_env
        if env_index and isinstance(make_env, EnvMaker):
            # Only one environment gets a window, because each window takes time to render.
            make_env = make_env.without_window()
        env = self._make(make_env, opening)
        adapter = self._call(lambda: open_adapter(env, env_index), opening, "reset()")
        adapter.info_keys = [column.key for column in self.columns.stepped]
        return adapter

    def close(self, deadline_s: float) -> list[Fault]:
        faults = [close_within(one.close, one.where(), deadline_s - perf_counter()) for one in self.adapters]
        return [fault for fault in faults if fault is not None]


def _counts_of(adapter: EnvAdapter) -> tuple[int, int]:
    return adapter.vanished, adapter.actions_corrected


@dataclass(frozen=True, slots=True)
class _EnvBeingMade:
    env_index: int

    def where(self) -> str:
        return f"env {self.env_index}, at its opening"

    def name(self) -> str:
        return f"env {self.env_index}"


@dataclass(slots=True)
class _Received:
    """The rewards and other results of environments in one step, in order of receipt."""

    lanes: list[int] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    infos: list[Mapping[str, Any] | None] = field(default_factory=list)
    ends: dict[int, AgentEnd] = field(default_factory=dict)
    last: dict[int, Mapping[str, Any] | None] = field(default_factory=dict)
    late_lanes: list[int] = field(default_factory=list)
    late: list[Any] = field(default_factory=list)


# The result of an environment without an episode.
_IDLE = StepResult()
