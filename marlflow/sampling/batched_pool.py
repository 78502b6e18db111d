"""A batched environment of one worker, called under a watchdog; its arrays fill the table of lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Literal, TypeVar

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.info_columns import InfoColumn
from marlflow.env import BatchedStep, SnapshotEnv
from marlflow.env.batched.adapter import NOBODY_DECIDES, BatchedAdapter
from marlflow.env.batched.protocol import as_numpy
from marlflow.env.episode_location import EpisodeLocation, environment_name
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.env_source import EnvSource, Finals, LaneStep, lanes_in, not_given
from marlflow.sampling.group_layout import GroupLayout
from marlflow.sampling.receipts import Fault, FaultLog
from marlflow.sampling.sampler_config import SamplerConfig
from marlflow.sampling.watchdog import Watchdog, close_within

_T = TypeVar("_T")


class BatchedEnvPool(EnvSource):
    """Environments that are all stepped by one call.

    A call that raises breaks all running episodes; a wrong number breaks its own.
    """

    def __init__(self, config: SamplerConfig, env_indices: Sequence[int], watchdog: Watchdog, faults: FaultLog) -> None:
        super().__init__(config, env_indices, watchdog, faults)
        assert config.make_batched is not None, "chosen by it"
        self._make_batched = config.make_batched
        self._is_broken = False
        with watchdog.on_guard():
            self._open()
        count = len(self.env_indices)
        self.stride = len(self.first.agents)
        # By lane: whether its agent lives, and whether it acts next.
        self.alive, self.decides = np.zeros(count * self.stride, bool), np.zeros(count * self.stride, bool)
        self._latest = LatestSteps(count)

    def _open(self) -> None:
        self.env = self._make(lambda: self._make_batched(len(self.env_indices)), self)
        self._name = environment_name(self.env)
        location = EpisodeLocation(self._name, self.env_indices[0])
        if self.env.num_envs != len(self.env_indices):
            raise location.broken(f"it has {self.env.num_envs} environments, not the {len(self.env_indices)} asked for")
        adapter = self.guarded(lambda: BatchedAdapter(self.env, location), "reset()")
        self.adapters = [adapter] * len(self.env_indices)
        self.layout = GroupLayout(self.env, adapter.masked_groups)

    @property
    def compile_s(self) -> float:
        return float(getattr(self.env, "compile_s", 0.0))

    @property
    def can_be_saved(self) -> bool:
        """Whether running episodes can be saved."""
        return isinstance(self.env, SnapshotEnv)

    def where(self, index: int | None = None, agent: str | None = None) -> str:
        """Describe the batch, or one environment of it with its episode and an agent."""
        if index is None:
            return f"environment {getattr(self, '_name', 'in a batch')}, a batch of {len(self.env_indices)}"
        location = EpisodeLocation(self._name, self.env_indices[index])
        location.seed, location.env_steps = int(self.seeds[index]), int(self.env_steps[index])
        return location.words(agent)

    def name(self) -> str:
        """Return the environments' numbers as text."""
        return f"envs {self.env_indices[0]} to {self.env_indices[-1]}"

    def failure(self, index: int, slot: int | None, reason: str) -> EnvironmentFailed:
        return EnvironmentFailed(self.where(index, None if slot is None else self.first.agents[slot]), reason)

    def halt(self, indices: Array) -> None:
        self.is_running[indices] = False
        lanes = lanes_in(indices, self.stride)
        self.alive[lanes] = self.decides[lanes] = False

    def discard(self, indices: Sequence[int]) -> None:
        # Environments must be made again only after a call that raised.
        del indices

    def deciding(self) -> Array:
        return np.flatnonzero(self.decides)

    def seen(self, acting: ActingPolicy) -> tuple[Any, Any, Array | None]:
        env_of = acting.lanes // self.stride
        observations = self._latest.rows("observations", self.layout, acting.lanes, env_of)
        masks = observations[:0]
        if acting.spaces.masked:
            masks = self._latest.rows("action_masks", self.layout, acting.lanes, env_of)
        return observations, masks, self.states[env_of] if acting.sees_state else None

    def clear_actions(self) -> None:
        self.layout.clear_actions()

    def put_actions(self, acting: ActingPolicy, action: Array) -> None:
        self.layout.write_actions(acting.lanes, acting.decoder.values(action))

    def step(self, deciding: Array, is_read: Array | None) -> LaneStep:
        del deciding
        self.env_steps += 1
        began = perf_counter()
        try:
            step = self.guarded(lambda: self._read(self.env.step(self.layout.actions), "step()"), "step()")
            for column in self.columns.in_rows:
                if column.key not in step.infos:
                    raise EnvironmentFailed(self.where(), not_given(column))
        except EnvironmentFailed as failure:
            return LaneStep(broken=self._all_broke(failure))
        finally:
            self.env_s += perf_counter() - began
        return self._outcome(step, is_read)

    def _all_broke(self, failure: EnvironmentFailed) -> dict[int, EnvironmentFailed]:
        self._is_broken = True
        return dict.fromkeys(np.flatnonzero(self.is_running).tolist(), failure)

    def _outcome(self, step: BatchedStep, is_read: Array | None) -> LaneStep:
        layout, alive = self.layout, self.alive
        running = np.repeat(self.is_running, self.stride)
        rewards = np.where(running, layout.by_lane(step.rewards, np.float64), 0.0)
        infos, needed = None, {"reward": rewards}
        if is_read is not None:
            # Numbers of dead agents count only if they are added up.
            is_read = running & is_read & [alive | column.adds for column in self.columns.stepped]
            given = self._numbers(self.columns.stepped, step)
            infos = np.where(is_read & np.isfinite(given), given, np.nan)
            in_rows = zip(self.columns.in_rows, is_read, given, strict=False)
            needed |= {column.name: np.where(read, of_lanes, 0.0) for column, read, of_lanes in in_rows}
        broken = self._not_finite(needed)
        terminated = layout.by_lane(step.terminated, bool)
        ended = np.flatnonzero((terminated | layout.by_lane(step.truncated, bool)) & alive)
        self._latest.start(step)
        if not (len(ended) or broken or step.decides):
            return LaneStep(True, None, rewards, infos)
        alive[ended] = False
        self.decides[:] = self._deciders(step)
        over = self.is_running & ~alive.reshape(-1, self.stride).any(axis=1)
        stuck = self.is_running & ~over & ~self.decides.reshape(-1, self.stride).any(axis=1)
        for index in np.flatnonzero(stuck).tolist():
            broken.setdefault(index, self.failure(index, None, NOBODY_DECIDES))
        if broken:
            lanes = lanes_in(np.array(list(broken)), self.stride)
            rewards[lanes] = 0.0
            if infos is not None:
                infos[:, lanes] = np.nan
            ended = ended[~np.isin(ended, lanes)]
        over[list(broken)] = False
        last = None
        if len(ended) and any(column.key in step.infos for column in self.columns.last):
            # Agents that ended earlier learn how the episode ended, such as whether their team won.
            told = np.unique(np.concatenate([ended, lanes_in(np.flatnonzero(over), self.stride)]))
            given = self._numbers(self.columns.last, step)[:, told]
            # For such agents, 0 may mean that there is no number.
            last = told, np.where(np.isfinite(given) & (np.isin(told, ended) | (given != 0.0)), given, np.nan)
        over_now = np.flatnonzero(over).tolist()
        return LaneStep(False, None, rewards, infos, ended, terminated[ended], last, over=over_now, broken=broken)

    def _numbers(self, columns: Sequence[InfoColumn], step: BatchedStep) -> Array:
        """Return the numbers of agents in the infos of a step, float64 [K, lanes]; NaN where the step has none."""
        numbers = np.full((len(columns), len(self.alive)), np.nan)
        for row, column in enumerate(columns):
            if column.key in step.infos:
                numbers[row] = self.layout.by_lane(step.infos[column.key], np.float64)
        return numbers

    def _not_finite(self, amounts: Mapping[str, Array]) -> dict[int, EnvironmentFailed]:
        """Return the environments in which an agent received a NaN or an infinity, of `amounts` [lanes] by name."""
        broken: dict[int, EnvironmentFailed] = {}
        for what, of_lanes in amounts.items():
            if np.isfinite(of_lanes).all():
                continue
            for lane in np.flatnonzero(~np.isfinite(of_lanes)).tolist():
                index, slot = divmod(lane, self.stride)
                reason = f"the {what} is {float(of_lanes[lane])}, not a finite number"
                broken.setdefault(index, self.failure(index, slot, reason))
        return broken

    def finals(self, acting: ActingPolicy, lanes: Array) -> Finals:
        step = self._latest.step
        seen = {"obs": acting.stack(self.layout.rows(step.observations, lanes))}
        if acting.spaces.masked:
            seen["action_mask"] = self.layout.rows(step.action_masks, lanes).astype(bool)
        if acting.sees_state:
            seen["state"] = self.states[lanes // self.stride]
        return Finals(seen)

    def reset(self, indices: Array, seeds: Array, tasks: Sequence[int | None] = ()) -> LaneStep:
        del tasks  # Batched environments have none.
        if self._is_broken:
            self._reopen()
        self.seeds[indices], self.env_steps[indices] = seeds, 0
        began = perf_counter()
        try:
            step = self.guarded(lambda: self._read(self.env.reset(indices, seeds), "reset()"), "reset()")
        except EnvironmentFailed as failure:
            # Episodes that failed to begin have no rows to lose, and their numbers are not used again.
            self.is_running[indices] = True
            return LaneStep(broken=self._all_broke(failure))
        finally:
            self.env_s += perf_counter() - began
        self.show(indices, step, np.ones(len(self.alive), bool))
        return LaneStep()

    def show(self, indices: Array, step: BatchedStep, alive: Array) -> None:
        """Continue the episodes of `indices`, which see what is in `step`; `alive` bool [lanes]."""
        self.is_running[indices] = True
        lanes = lanes_in(indices, self.stride)
        self.alive[lanes] = alive[lanes]
        self.decides[lanes] = self._deciders(step)[lanes]
        self._latest.add(step, indices)

    def take_over(self, running: Array, alive: Array, decides: Array) -> None:
        """Continue the episodes after a compiled call: `running` [B], and whether agents live and act next, [B, A].

        Raises EnvironmentFailed.
        """
        self.is_running[:], self.alive[:] = running, alive.reshape(-1)
        self.decides[:] = (decides & running[:, None]).reshape(-1)
        env: Any = self.env
        self._latest.start(self.guarded(lambda: self._read(env.look(), "look()"), "look()"))

    def _deciders(self, step: BatchedStep) -> Array:
        return self.layout.by_lane(step.decides, bool) & self.alive if step.decides else self.alive

    def get_state(self, indices: Array) -> dict[str, Array]:
        """Return the saved episodes of `indices`, [N, ...] each; raises EnvironmentFailed."""
        env = self.env
        assert isinstance(env, SnapshotEnv), "can_be_saved says so"
        return self.guarded(lambda: {n: as_numpy(c) for n, c in env.get_state(indices).items()}, "get_state()")

    def set_state(self, indices: Array, state: Mapping[str, Array]) -> BatchedStep:
        """Continue saved episodes; raises EnvironmentFailed."""
        env = self.env
        assert isinstance(env, SnapshotEnv), "can_be_saved says so"
        return self.guarded(lambda: self._read(env.set_state(indices, state), "set_state()"), "set_state()")

    def _read(self, step: BatchedStep, doing: str) -> BatchedStep:
        if self._sees_state:
            self.states = self._read_states()
        try:
            return self.layout.read(step)
        except ValueError as error:
            raise EnvironmentFailed(self.where(), f"{doing} gave {error}") from error

    def _read_states(self) -> Array:
        space = self.first.state_space()
        assert space is not None, "policies that see a state were checked"
        states = as_numpy(self.env.state())  # type: ignore[attr-defined]
        if states.shape != (len(self.env_indices), *space.shape):
            shape = [len(self.env_indices), *space.shape]
            raise EnvironmentFailed(self.where(), f"state() gave an array of shape {list(states.shape)}, not {shape}")
        return states.astype(space.dtype)

    def guarded(self, call: Callable[[], _T], doing: str) -> _T:
        """Return the result of `call`, run under the watchdog; raises EnvironmentFailed."""
        try:
            return self._call(call, self, doing)
        except EnvironmentFailed:
            raise
        except (Exception, SystemExit) as error:
            raise EpisodeLocation(self._name, self.env_indices[0]).raised(error, doing) from error

    def _reopen(self) -> None:
        """Recreate the environments; raises EnvironmentFailed if that fails too often."""
        if (fault := close_within(self.env.close, self.where(), self.watchdog.timeout_s)) is not None:
            self.faults.report(fault)
        self._until_opened(self._open)
        self._is_broken = False

    def close(self, deadline_s: float) -> list[Fault]:
        fault = close_within(self.env.close, self.where(), deadline_s - perf_counter())
        return [] if fault is None else [fault]


class LatestSteps:
    """The step or reset that has each environment's observations.

    A reset has observations for its own environments only. Merging the arrays would copy all of them, and change arrays
    that belong to the environment.
    """

    def __init__(self, num_envs: int) -> None:
        self._steps = [BatchedStep({})]
        # By environment: a position in `_steps`.
        self._step_of = np.zeros(num_envs, np.int64)

    @property
    def step(self) -> BatchedStep:
        """The last step of all environments."""
        return self._steps[0]

    def start(self, step: BatchedStep) -> None:
        """Take the observations of all environments from `step`."""
        self._steps = [step]
        self._step_of[:] = 0

    def add(self, step: BatchedStep, indices: Array) -> None:
        """Take the observations of the environments `indices` from `step`."""
        self._step_of[indices] = len(self._steps)
        self._steps.append(step)

    def rows(
        self, name: Literal["observations", "action_masks"], layout: GroupLayout, lanes: Array, env_of: Array
    ) -> Array:
        """Return a copy of the rows of `lanes`, which are in the environments `env_of`, [N, ...]."""
        if len(self._steps) == 1:
            return layout.rows(getattr(self._steps[0], name), lanes)
        source = self._step_of[env_of]
        numbers = np.unique(source).tolist()
        rows = layout.rows(getattr(self._steps[numbers[0]], name), lanes)
        for number in numbers[1:]:
            at = np.flatnonzero(source == number)
            rows[at] = layout.rows(getattr(self._steps[number], name), lanes[at])
        return rows
