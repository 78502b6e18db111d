"""The environment loop of a worker: one call per policy and tick, for its lanes in all environments.

A tick costs a fixed number of vector operations; work per environment or agent is done when episodes begin only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from time import perf_counter
from typing import NamedTuple

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.random import RowRandom
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.action_history import History
from marlflow.sampling.env_source import EnvSource, LaneStep, lanes_in
from marlflow.sampling.episodes import EpisodeSource
from marlflow.sampling.lanes import NO_EPISODE, Lanes
from marlflow.sampling.protocol import Matchup
from marlflow.sampling.receipts import CompiledCalls, EpisodeResult, fault_of
from marlflow.sampling.segment_builder import SegmentBuilder


class Runner:
    """Steps `envs` in lockstep, as Gymnasium's VectorEnv and SB3's VecEnv do; no `builder` means no rows."""

    compiled: CompiledCalls = CompiledCalls()
    """The programs compiled since the last receipt."""

    def __init__(
        self,
        envs: EnvSource,
        lanes: Lanes,
        episodes: EpisodeSource,
        builder: SegmentBuilder | None,
        history: History | None = None,
    ) -> None:
        self._envs, self._acting_policies, self.lanes = envs, lanes.table.acting_policies, lanes
        self._episodes, self._builder, self._history = episodes, builder, history
        self._env_indices, self._is_declared = np.array(envs.env_indices, np.int64), envs.first.declared
        self.halt()
        self.clear()

    def halt(self) -> None:
        """Leave every environment without an episode until `begin`."""
        self._envs.halt(np.arange(len(self._env_indices)))
        self.resume()

    def clear(self) -> None:
        """Reset the results and counters of a collect."""
        self.results: list[EpisodeResult] = []
        self.env_steps = self.agent_steps = self.ticks = 0
        self._envs.env_s = self.policy_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether no episode is running."""
        return not len(self.deciding)

    @property
    def running(self) -> dict[int, int]:
        """Env steps of each running episode, by environment."""
        indices = np.flatnonzero(self._envs.is_running)
        return dict(zip(indices.tolist(), self._envs.env_steps[indices].tolist(), strict=True))

    def resume(self) -> None:
        """Continue the episodes that run in the environments."""
        self._acting: list[ActingPolicy] = []
        self._gather(steady=False)

    def begin(self) -> None:
        """Start the next episode of each idle environment, if any."""
        idle = np.flatnonzero(~self._envs.is_running).tolist()
        if idle:
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
        self.env_steps += int(np.count_nonzero(self._envs.is_running))
        self.ticks += 1
        step = self._envs.step(self.deciding, self.lanes.is_read)
        if len(step.rewards):
            self.lanes.add(step.lanes, step.rewards, step.infos)
            if self._builder is not None:
                self._builder.add(step.lanes, step.rewards, step.infos)
        if not step.steady:
            self._end(step)
        self._gather(step.steady)

    def _decide(self) -> None:
        deciding, builder, lanes, envs = self.deciding, self._builder, self.lanes, self._envs
        self.agent_steps += len(deciding)
        t_agent = lanes.t_agent[deciding]
        cells = None
        if builder is not None:
            cells = builder.open_next(deciding, envs.env_steps[self._deciding_env], t_agent)
        if self._history is not None:
            self._history.observe(deciding, self._acting_policies)
        # Counter-based: an agent's random numbers do not depend on the other lanes of the batch.
        random = RowRandom(lanes.keys[deciding], t_agent, self._deciding_env_indices)
        envs.clear_actions()
        for acting in self._acting:
            where, seen, memory = acting.where, acting.seen, acting.memory
            generator = random if acting.in_order and len(where) == len(deciding) else random.only(where)
            recalled = None if memory is None else memory.recall(acting.lanes)
            began = perf_counter()
            acted = acting.act(recalled, generator)
            self.policy_s += perf_counter() - began
            if memory is not None:
                seen = {**seen, **memory.update(acting.lanes, acted.memory, acting.version)}
            if acting.buffer is not None and cells is not None:
                acting.buffer.write(acting.rows, cells[where], seen, acted.action, acted.behavior_logp)
            envs.put_actions(acting, acted.action)
            if self._history is not None:
                self._history.record_actions(acting, acted.action)
        t_agent += 1
        lanes.t_agent[deciding] = t_agent

    def _end(self, step: LaneStep) -> None:
        """End the trajectories and episodes of a step, and begin the next ones."""
        broken = step.broken
        if not self._is_declared:
            broken |= self.lanes.assign_joined(self._envs, self._episodes, broken)
        if step.last is not None:
            self.lanes.set_last(*step.last)
        if self._builder is not None and len(step.ended):
            self._end_segments(step, self._builder, broken)
        if len(step.ended):
            # An agent that comes back later in the episode remembers nothing of what was before its end.
            self._forget(step.ended)
        self._receive_late(step, broken)
        over = [index for index in step.over if index not in broken]
        if over:
            self._finish(over, step)
        self._discard(broken)
        if over or broken:
            self._reset(sorted({*over, *broken}))

    def _forget(self, lanes: Array) -> None:
        for number in set(self.lanes.entry_of[lanes].tolist()):
            if (memory := self._acting_policies[number].memory) is not None:
                memory.begin(lanes)

    def _end_segments(self, step: LaneStep, builder: SegmentBuilder, broken: dict[int, EnvironmentFailed]) -> None:
        """End the segments of `step.ended`, by policy; add to `broken` if a final observation is not of its space."""
        lanes, terminated = step.ended, step.terminated
        # An agent that never acted has no row.
        if not (acted := builder.is_open[lanes]).all():
            lanes, terminated = lanes[acted], terminated[acted]
        entry_of = self.lanes.entry_of[lanes]
        numbers = set(entry_of.tolist())
        for number in sorted(numbers):
            of_number = slice(None) if len(numbers) == 1 else entry_of == number
            acting, at, has_terminated = self._acting_policies[number], lanes[of_number], terminated[of_number]
            while len(at):
                if broken:
                    sound = self._are_sound(at, broken)
                    at, has_terminated = at[sound], has_terminated[sound]
                    if not len(at):
                        break
                try:
                    finals = None if acting.buffer is None else self._envs.finals(acting, at)
                except ObservationOutside as outside:
                    index, slot = divmod(int(at[outside.index]), self.lanes.stride)
                    broken[index] = self._envs.failure(index, slot, f"the final {outside.reason}")
                    continue
                # An observation of another policy may still break their environment; then its segments are discarded.
                rows, episodes = self.lanes.row_of[at], self.lanes.episode[at]
                builder.end_segments(at, rows, has_terminated, episodes, acting, finals)
                break

    def _are_sound(self, lanes: Array, broken: Mapping[int, object]) -> Array:
        """Return which of `lanes` are in environments that did not break, bool [N]."""
        sound: Array = ~np.isin(self.lanes.env_of[lanes], list(broken))
        return sound

    def _receive_late(self, step: LaneStep, broken: Mapping[int, object]) -> None:
        # Rewards after an agent's end or before its first action.
        lanes, rewards = step.late_lanes, step.late_rewards
        if not len(lanes):
            return
        if broken:
            sound = self._are_sound(lanes, broken)
            lanes, rewards = lanes[sound], rewards[sound]
        self.lanes.add(lanes, rewards)
        if self._builder is not None:
            self._builder.add_late_rewards(lanes, rewards)

    def _finish(self, over: list[int], step: LaneStep) -> None:
        """Report the episodes of the environments `over`."""
        lanes, envs, count = self.lanes, self._envs, len(over)
        at = np.array(over)
        finished, shape = lanes_in(at, lanes.stride), (count, lanes.stride)
        truncated = {index // lanes.stride for index in step.ended[~step.terminated].tolist()}
        ended = Ended(
            over,
            [index in truncated for index in over],
            [self.ticks] * count,
            lanes.episode[at * lanes.stride].tolist(),
            envs.env_steps[at].tolist(),
            lanes.returns[finished].reshape(shape).tolist(),
        )
        infos = lanes.infos[:, finished].reshape(-1, *shape) if lanes.has_infos else None
        self.results += results_of(ended, envs, [lanes.matchups[index] for index in over], infos)
        if self._builder is not None:
            self._builder.end_episode(finished)
        # If the next reset fails, the rows of a finished episode must not be discarded with it.
        lanes.episode[finished] = NO_EPISODE

    def _discard(self, broken: Mapping[int, EnvironmentFailed]) -> None:
        """Discard the episodes of environments that broke, each failure a fault; raise it if over budget."""
        if not broken:
            return
        together: dict[int, list[int]] = {}
        for index in sorted(broken):
            together.setdefault(id(broken[index]), []).append(index)
        for indices in together.values():
            failure = broken[indices[0]]
            self._envs.faults.tolerate(failure)
            self._envs.faults.report(fault_of(failure, sum(map(self.abandon, indices))))
        self._envs.discard(list(broken))

    def abandon(self, index: int) -> int:
        """Discard the episode of an environment; return how many rows were lost."""
        lanes = self.lanes.of(index)
        episode = int(self.lanes.episode[lanes.start])
        lost = 0 if self._builder is None else self._builder.discard(lanes, episode)
        self.lanes.abandon(index)
        return lost

    def _reset(self, indices: Sequence[int]) -> None:
        """Start the next episodes of `indices`, if any, skipping those whose resets fail."""
        episodes = self._episodes
        while indices:
            following = {index: episodes.next(index) for index in indices}
            begun = {index: episode for index, episode in following.items() if episode is not None}
            if len(begun) < len(following):
                self._envs.halt(np.array([index for index in indices if index not in begun]))
            if not begun:
                return
            starting, numbers = np.array([*begun]), np.array([*begun.values()])
            step = self._envs.reset(starting, episodes.seeds(starting, numbers), [*map(episodes.task, begun)])
            broken = step.broken
            if broken:
                is_sound = ~np.isin(starting, list(broken))
                starting, numbers = starting[is_sound], numbers[is_sound]
            broken |= self.lanes.begin_many(starting, numbers, self._envs, episodes)
            if self._history is not None:
                for index in begun:
                    if index not in broken:
                        self._history.begin_episode(index)
            self._receive_late(step, broken)
            self._discard(broken)
            indices = sorted(broken)

    def _gather(self, steady: bool) -> None:
        """Pass the policies the observations of their lanes; `steady` if the same lanes act again."""
        while True:
            if not steady:
                self._assign_deciding()
            try:
                for acting in self._acting:
                    acting.set_observations(*self._envs.seen(acting))
                return
            except ObservationOutside as outside:
                index, slot = divmod(int(acting.lanes[outside.index]), self.lanes.stride)
                self._discard({index: self._envs.failure(index, slot, f"the {outside.reason}")})
                self._reset([index])
                steady = False

    def _assign_deciding(self) -> None:
        self.deciding = self._envs.deciding()
        """The lanes waiting for an action, [N]."""
        self._deciding_env = self.lanes.env_of[self.deciding]
        self._deciding_env_indices = self._env_indices[self._deciding_env]
        entry_of = self.lanes.entry_of[self.deciding]
        counts = np.bincount(entry_of, minlength=len(self._acting_policies)).tolist()
        for number, acting in enumerate(self._acting_policies):
            if counts[number] or len(acting.lanes) or acting.positions:
                acting.set_pending(np.flatnonzero(entry_of == number), self.deciding, self.lanes.row_of)
        self._acting = [acting for acting in self._acting_policies if acting.positions]


class Ended(NamedTuple):
    """N ended episodes: environment, whether any agent was truncated, tick, number, and env steps.

    `returns` are the agents' returns by slot, [N][A].
    """

    env: Sequence[int]
    truncated: Sequence[bool]
    tick: Sequence[int]
    episode: Sequence[int]
    env_steps: Sequence[int]
    returns: Sequence[Sequence[float]]


def results_of(
    ended: Ended, envs: EnvSource, matchups: Sequence[Matchup], infos: Array | None
) -> Iterator[EpisodeResult]:
    """Yield the results of these episodes, in their order.

    `matchups` are theirs, `infos` their info columns, [K, N, A], NaN where there is no number; None: there are none.
    """
    names = () if infos is None or np.isnan(infos).all() else envs.columns.names
    columns = zip(matchups, *ended, strict=True)
    for at, (matchup, index, was_cut, tick, episode, env_steps, returns) in enumerate(columns):
        agents, appeared = list(envs.adapters[index].agents), envs.appeared(index)
        return_of = dict(zip(agents, returns, strict=False))
        if appeared is not None:
            # An agent may have a return without having appeared: a reward before its first action.
            return_of = {a: returns[slot] for slot, a in enumerate(agents) if slot in appeared or returns[slot]}
        infos_of = {}
        for number, name in enumerate(names):
            assert infos is not None, "then there are no names"
            given = zip(agents, infos[number, at].tolist(), strict=False)
            if known := {a: value for a, value in given if not isnan(value) and (value or a in return_of)}:
                infos_of[name] = known
        yield EpisodeResult(
            envs.env_indices[index], episode, env_steps, return_of, tick, matchup, truncated=was_cut, infos=infos_of
        )
