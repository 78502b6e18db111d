"""The batched environment of one worker, called under a watchdog and recreated when it breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TypeVar

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.env import BatchedEnv, BatchedStep, SnapshotEnv
from marlflow.env.batched.adapter import BatchedAdapter
from marlflow.env.batched.arrays import as_numpy
from marlflow.env.episode_location import EpisodeLocation, environment_name
from marlflow.sampling.env_closing import close_within
from marlflow.sampling.faults import FaultLog
from marlflow.sampling.group_layout import GroupLayout
from marlflow.sampling.receipts import Fault
from marlflow.sampling.watchdog import Overdue, Watchdog

_T = TypeVar("_T")


class BatchedEnvPool:
    """The environments `env_indices` of a worker, all stepped by one call; `index` is the position among them.

    `states` has all global states [B, *shape] if `sees_state`. Steps have costs if `reads_costs`.
    """

    # No agent of a batched environment leaves without a mark, and no wrapper corrects actions.
    counts = np.zeros(2, np.int64)

    def __init__(
        self,
        env_indices: Sequence[int],
        make_batched: Callable[[int], BatchedEnv],
        watchdog: Watchdog,
        faults: FaultLog,
        sees_state: bool = False,
        reads_costs: bool = False,
    ) -> None:
        self.env_indices, self._make_batched = [int(env_index) for env_index in env_indices], make_batched
        self.watchdog, self.faults = watchdog, faults
        self._sees_state, self.reads_costs = sees_state, reads_costs
        self.seeds = np.zeros(len(self.env_indices), np.int64)
        self.env_steps = np.zeros(len(self.env_indices), np.int64)
        self.states: Array | None = None
        with watchdog.on_guard():
            self._open()

    def _open(self) -> None:
        watchdog = self.watchdog
        watchdog.begun += 1
        watchdog.playing, watchdog.doing, watchdog.loading = self, "making the environment", True
        try:
            # Not limited by the watchdog: loading may take longer than a step.
            self.env = self._make_batched(len(self.env_indices))
        finally:
            watchdog.loading = False
        self._name = environment_name(self.env)
        location = EpisodeLocation(self._name, self.env_indices[0])
        if self.env.num_envs != len(self.env_indices):
            raise location.broken(f"it has {self.env.num_envs} environments, not the {len(self.env_indices)} asked for")
        self.first = self.guarded(lambda: BatchedAdapter(self.env, location), "reset()")
        self.layout = GroupLayout(self.env, self.first.masked_groups)

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

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        """Step all environments; raises EnvironmentFailed."""
        self.env_steps += 1
        step = self.guarded(lambda: self._read(self.env.step(actions), "step()"), "step()")
        if self.reads_costs and not step.costs:
            raise EnvironmentFailed(self.where(), NO_COSTS)
        return step

    def reset(self, indices: Array, seeds: Array) -> BatchedStep:
        """Start episodes in `indices` [N]; raises EnvironmentFailed."""
        self.seeds[indices], self.env_steps[indices] = seeds, 0
        return self.guarded(lambda: self._read(self.env.reset(indices, seeds), "reset()"), "reset()")

    def look(self) -> BatchedStep:
        """Return what agents see now, of environments that can say so without a step; raises EnvironmentFailed."""
        return self.guarded(lambda: self._read(self.env.look(), "look()"), "look()")  # type: ignore[attr-defined]

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
        """Return what `call` returns, under the watchdog; raises EnvironmentFailed."""
        watchdog = self.watchdog
        watchdog.begun += 1
        watchdog.playing, watchdog.doing = self, doing
        try:
            try:
                watchdog.inside = True
                return call()
            finally:
                watchdog.inside = False
        except Overdue as overdue:
            raise watchdog.hung_error(self.where(), doing, overdue) from None
        except EnvironmentFailed:
            raise
        except Exception as error:
            raise EpisodeLocation(self._name, self.env_indices[0]).raised(error, doing) from error

    def replace(self, failure: EnvironmentFailed, rows_lost: int) -> None:
        """Recreate the environments after `failure`, which counts as a fault.

        Raises EnvironmentFailed if this fails too often.
        """
        self.faults.add(failure, failure.reason, rows_lost)
        if (fault := close_within(self.env.close, self.where(), self.watchdog.timeout_s)) is not None:
            self.faults.report(fault)
        while True:
            try:
                self._open()
                return
            except EnvironmentFailed as again:
                self.faults.tolerate(again)
                self.faults.add(again, again.reason, 0)

    def close(self, deadline_s: float) -> list[Fault]:
        """Close the environments by `deadline_s` of time.perf_counter; return faults."""
        fault = close_within(self.env.close, self.where(), deadline_s - perf_counter())
        return [] if fault is None else [fault]


NO_COSTS = (
    "step() gave no costs, and a policy has a cost_limit; give BatchedStep.costs in every step, or set "
    "algorithm.cost_limit=null"
)
