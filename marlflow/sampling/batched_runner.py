"""The environment loop of a worker whose environments are stepped by one call.

Like SyncVectorRunner: the same lanes in the same order, so the same rows. Work per agent only when episodes end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.random import RowRandom
from marlflow.env import BatchedStep
from marlflow.env.batched.adapter import NOBODY_DECIDES
from marlflow.sampling.action_history import History
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.batched_results import Ended, results_of
from marlflow.sampling.episodes import EpisodeSource
from marlflow.sampling.lanes import NO_EPISODE, Lanes
from marlflow.sampling.latest_steps import LatestSteps, seen_at_end
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.receipts import CompiledCalls, EpisodeResult
from marlflow.sampling.segment_builder import SegmentBuilder


class BatchedRunner:
    """Steps `envs` at once; no `builder` means no rows."""

    compiled: CompiledCalls = CompiledCalls()
    """What was compiled since the last receipt."""

    def __init__(
        self,
        envs: BatchedEnvPool,
        policy_slots: Sequence[PolicySlots],
        lanes: Lanes,
        episodes: EpisodeSource,
        builder: SegmentBuilder | None,
        history: History | None = None,
    ) -> None:
        self._envs, self._policy_slots, self.lanes = envs, policy_slots, lanes
        self._episodes, self._builder, self._history = episodes, builder, history
        self._agents = list(envs.first.agents)
        self._env_indices = np.array(envs.env_indices, np.int64)
        self.halt()
        self.clear()

    def halt(self) -> None:
        """Leave every environment without an episode until `begin`."""
        num_envs, lanes = len(self._env_indices), len(self.lanes.entry_of)
        self._is_running = np.zeros(num_envs, bool)
        # By lane: whether its agent lives, and whether it acts next.
        self._alive, self._decides = np.zeros(lanes, bool), np.zeros(lanes, bool)
        self._latest = LatestSteps(num_envs)
        self._acting: list[PolicySlots] = []
        self._deciding = np.empty(0, np.int64)
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
        indices = np.flatnonzero(self._is_running)
        return dict(zip(indices.tolist(), self._envs.env_steps[indices].tolist(), strict=True))

    @property
    def alive(self) -> Array:
        """Whether the agent of each lane lives, bool [lanes]."""
        return self._alive

    def restore(self, indices: Array, step: BatchedStep, alive: Array) -> None:
        """Continue the episodes of `indices`, whose observations are in `step`; `alive` bool [lanes]."""
        self._is_running[indices] = True
        lanes = self._lanes_of(indices)
        self._alive[lanes] = alive[lanes]
        self._show(indices, step)
        self._gather(steady=False)

    def begin(self) -> None:
        """Start the next episode of each idle environment, if any."""
        idle = np.flatnonzero(~self._is_running)
        if len(idle):
            self._reset(idle)
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
        self._decide()
        self.env_steps += int(np.count_nonzero(self._is_running))
        self.ticks += 1
        began = perf_counter()
        try:
            step = self._envs.step(self._envs.layout.actions)
        except EnvironmentFailed as failure:
            self._break_all(failure)
            self._gather(steady=False)
            return
        finally:
            self.env_s += perf_counter() - began
        self._gather(self._receive(step))

    def _decide(self) -> None:
        deciding, builder, lanes, layout = self._deciding, self._builder, self.lanes, self._envs.layout
        self.agent_steps += len(deciding)
        t_agent = lanes.t_agent[deciding]
        cells = None
        if builder is not None:
            cells = builder.open_next(deciding, self._envs.env_steps[self._deciding_env], t_agent)
        if self._history is not None:
            self._history.observe(deciding, self._policy_slots)
        random = RowRandom(lanes.keys[deciding], t_agent, self._deciding_env_indices)
        layout.clear_actions()
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
            layout.write_actions(slots.lanes, slots.values(acted.action))
            if self._history is not None:
                self._history.record_actions(slots, acted.action)
        t_agent += 1
        lanes.t_agent[deciding] = t_agent

    def _receive(self, step: BatchedStep) -> bool:
        """Add up rewards and end trajectories; return whether the same lanes act again."""
        layout, stride = self._envs.layout, self.lanes.stride
        running = np.repeat(self._is_running, stride)
        rewards = np.where(running, layout.by_lane(step.rewards, np.float64), 0.0)
        terminated = layout.by_lane(step.terminated, bool)
        ended = np.flatnonzero((terminated | layout.by_lane(step.truncated, bool)) & self._alive)
        broken = self._not_finite(rewards, "reward")
        costs = self._costs(step, running, broken)
        finals = self._final_rows(step, ended, broken)
        if broken:
            of_broken = self._lanes_of(np.array(sorted(broken)))
            for amounts in (rewards,) if costs is None else (rewards, costs):
                amounts[of_broken] = 0.0
            ended = ended[~np.isin(self.lanes.env_of[ended], list(broken))]
        self.lanes.returns += rewards
        if costs is not None:
            self.lanes.costs += costs
        if self._builder is not None:
            self._builder.add_to_all(rewards, costs)
            self._end_segments(ended, terminated, finals)
        self._alive[ended] = False
        self._latest.start(step)
        if not (len(ended) or broken or step.decides):
            return True
        over = self._finish(ended, terminated, broken)
        self._decides[:] = self._deciders(step)
        self._check_turns(broken, over)
        for index in sorted(broken):
            self._discard(index, broken[index])
        if again := sorted({*over, *broken}):
            self._reset(np.array(again))
        return False

    def _costs(self, step: BatchedStep, running: Array, broken: dict[int, EnvironmentFailed]) -> Array | None:
        """Return the costs of all lanes, 0 where they are not read, if any are; add to `broken`."""
        if not self._envs.reads_costs:
            return None
        given = self._envs.layout.by_lane(step.costs, np.float64)
        costs = np.where(running & self.lanes.reads_costs, given, 0.0)
        broken |= {index: failure for index, failure in self._not_finite(costs, "cost").items() if index not in broken}
        return costs

    def _not_finite(self, amounts: Array, what: str) -> dict[int, EnvironmentFailed]:
        """Return the environments in which an agent received a NaN or an infinity."""
        broken: dict[int, EnvironmentFailed] = {}
        for lane in np.flatnonzero(~np.isfinite(amounts)).tolist():
            failure = self._failure(lane, f"the {what} is {float(amounts[lane])}, not a finite number")
            broken.setdefault(lane // self.lanes.stride, failure)
        return broken

    def _failure(self, lane: int, reason: str) -> EnvironmentFailed:
        index, slot = divmod(lane, self.lanes.stride)
        return EnvironmentFailed(self._envs.where(index, self._agents[slot]), reason)

    def _final_rows(
        self, step: BatchedStep, ended: Array, broken: dict[int, EnvironmentFailed]
    ) -> dict[int, tuple[Array, dict[str, Array]]]:
        """Return the lanes in `ended` and their final observations by the number of their policy slots.

        Adds environments to `broken` whose observations are not of their spaces.
        """
        finals: dict[int, tuple[Array, dict[str, Array]]] = {}
        if self._builder is None or not len(ended):
            return finals
        entry_of = self.lanes.entry_of[ended]
        for number in np.unique(entry_of).tolist():
            slots, lanes = self._policy_slots[number], ended[entry_of == number]
            while len(lanes := lanes[~np.isin(self.lanes.env_of[lanes], list(broken))]):
                try:
                    finals[number] = lanes, seen_at_end(step, slots, lanes, self._envs, self.lanes.env_of[lanes])
                    break
                except ObservationOutside as outside:
                    lane = int(lanes[outside.index])
                    broken[lane // self.lanes.stride] = self._failure(lane, f"the final {outside.reason}")
        return finals

    def _end_segments(
        self, ended: Array, terminated: Array, finals: Mapping[int, tuple[Array, dict[str, Array]]]
    ) -> None:
        builder = self._builder
        assert builder is not None, "only rows have segments"
        is_ended = np.zeros(len(self._alive), bool)
        is_ended[ended] = True
        for number, (lanes, seen) in finals.items():
            # Another policy's observation may have broken their environment.
            kept = np.flatnonzero(is_ended[lanes])
            of_kept = {name: column[kept] for name, column in seen.items()}
            at, slots = lanes[kept], self._policy_slots[number]
            builder.end_segments(at, self.lanes.row_of[at], terminated[at], self.lanes.episode[at], slots, of_kept)

    def _finish(self, ended: Array, terminated: Array, broken: Mapping[int, object]) -> list[int]:
        """Report the episodes whose agents have all ended; return their environments."""
        lanes, stride = self.lanes, self.lanes.stride
        touched = np.unique(lanes.env_of[ended])
        over = touched[~self._alive.reshape(-1, stride)[touched].any(axis=1)]
        if not len(over):
            return []
        truncated = np.zeros(len(self._is_running), bool)
        truncated[lanes.env_of[ended[~terminated[ended]]]] = True
        now, returns, costs = (
            np.full(len(over), self.ticks),
            *(x.reshape(-1, stride) for x in (lanes.returns, lanes.costs)),
        )
        numbers = lanes.episode[over * stride]
        ended_now = Ended(over, truncated[over], now, numbers, self._envs.env_steps[over], returns[over], costs[over])
        reads_costs = lanes.reads_costs.reshape(-1, stride)[over] if self._envs.reads_costs else None
        self.results += results_of(ended_now, self._envs, [lanes.matchups[at] for at in over.tolist()], reads_costs)
        finished = self._lanes_of(over)
        if self._builder is not None:
            self._builder.end_episode(finished)
        # If the next reset fails, the rows of a finished episode must not be discarded with it.
        lanes.episode[finished] = NO_EPISODE
        return [index for index in over.tolist() if index not in broken]

    def _check_turns(self, broken: dict[int, EnvironmentFailed], over: Sequence[int]) -> None:
        stuck = self._is_running & ~self._decides.reshape(-1, self.lanes.stride).any(axis=1)
        stuck[[*over, *broken]] = False
        for index in np.flatnonzero(stuck).tolist():
            broken[index] = EnvironmentFailed(self._envs.where(index), NOBODY_DECIDES)

    def _deciders(self, step: BatchedStep) -> Array:
        if not step.decides:
            return self._alive
        return self._envs.layout.by_lane(step.decides, bool) & self._alive

    def _lanes_of(self, indices: Array) -> Array:
        return (indices[:, None] * self.lanes.stride + np.arange(self.lanes.stride)).reshape(-1)

    def _discard(self, index: int, failure: EnvironmentFailed) -> None:
        """Discard the broken episode of one environment; the others continue."""
        self._envs.faults.tolerate(failure)
        self._envs.faults.add(failure, failure.reason, self._lose(index))

    def _lose(self, index: int) -> int:
        lanes = self.lanes.of(index)
        episode = int(self.lanes.episode[lanes.start])
        lost = 0 if self._builder is None else self._builder.discard(lanes, episode, self._policy_slots)
        self.lanes.unassign(index, {})
        return lost

    def _break_all(self, failure: EnvironmentFailed) -> None:
        """Discard all running episodes, recreate the environments, and start the next episodes."""
        self._envs.faults.tolerate(failure)
        running = np.flatnonzero(self._is_running)
        self._envs.replace(failure, sum(self._lose(index) for index in running.tolist()))
        self._reset(running)

    def _reset(self, indices: Array) -> None:
        """Start the next episodes of `indices`, if any; a reset that fails breaks all running episodes."""
        lanes = self._lanes_of(indices)
        self._is_running[indices] = False
        self._alive[lanes] = self._decides[lanes] = False
        following = [(index, self._episodes.next(index)) for index in indices.tolist()]
        begun = [(index, episode) for index, episode in following if episode is not None]
        if not begun:
            return
        starting, numbers = np.array(begun, np.int64).T
        began = perf_counter()
        try:
            step = self._envs.reset(starting, self._episodes.seeds(starting, numbers))
        except EnvironmentFailed as failure:
            # No rows of the episodes that were to begin are lost, and their numbers are used up.
            self._is_running[starting] = True
            self._break_all(failure)
            return
        finally:
            self.env_s += perf_counter() - began
        self.lanes.begin_many(starting, numbers, self._envs.first, self._episodes)
        if self._history is not None:
            for index in starting.tolist():
                self._history.begin_episode(index)
        self._is_running[starting] = True
        self._alive[self._lanes_of(starting)] = True
        self._show(starting, step)

    def _show(self, indices: Array, step: BatchedStep) -> None:
        """Take the observations of `indices` from `step`."""
        lanes = self._lanes_of(indices)
        self._decides[lanes] = self._deciders(step)[lanes]
        self._latest.add(step, indices)

    def _gather(self, steady: bool) -> None:
        """Pass the policies the observations of their lanes; `steady` if the same lanes act again."""
        while True:
            if not steady:
                self._assign_deciding()
            try:
                for slots in self._acting:
                    slots.set_observations(*self._seen(slots))
                return
            except ObservationOutside as outside:
                lane = int(slots.lanes[outside.index])
                self._discard(lane // self.lanes.stride, self._failure(lane, f"the {outside.reason}"))
                self._reset(np.array([lane // self.lanes.stride]))
                steady = False

    def _seen(self, slots: PolicySlots) -> tuple[Array, Array, Array | None]:
        env_of, layout = self.lanes.env_of[slots.lanes], self._envs.layout
        observations = self._latest.rows("observations", layout, slots.lanes, env_of)
        masks = observations[:0]
        if slots.spaces.masked:
            masks = self._latest.rows("action_masks", layout, slots.lanes, env_of)
        state = self._envs.states[env_of] if slots.sees_state and self._envs.states is not None else None
        return observations, masks, state

    def _assign_deciding(self) -> None:
        self._deciding = np.flatnonzero(self._decides)
        self._deciding_env = self.lanes.env_of[self._deciding]
        self._deciding_env_indices = self._env_indices[self._deciding_env]
        entry_of = self.lanes.entry_of[self._deciding]
        counts = np.bincount(entry_of, minlength=len(self._policy_slots)).tolist()
        for number, slots in enumerate(self._policy_slots):
            if counts[number] or len(slots.lanes) or slots.positions:
                slots.set_pending(np.flatnonzero(entry_of == number), self._deciding, self.lanes.row_of)
        self._acting = [slots for slots in self._policy_slots if slots.positions]
