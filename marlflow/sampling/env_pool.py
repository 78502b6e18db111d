"""The environments of one worker, stepped under a watchdog and reopened when they break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.env import EnvAdapter, StepResult, open_adapter
from marlflow.env.make import EnvMaker
from marlflow.sampling.env_closing import close_adapter
from marlflow.sampling.faults import FaultLog
from marlflow.sampling.receipts import Fault
from marlflow.sampling.watchdog import NamedEnv, Overdue, Watchdog

_T = TypeVar("_T")


class EnvPool:
    """One worker's environments: `env_indices` are unique over all workers, `index` is the position among them.

    `states` has each environment's global state if `sees_state`. Results have costs if `reads_costs`.
    """

    def __init__(
        self,
        env_indices: Sequence[int],
        make_env: Callable[[], Any],
        watchdog: Watchdog,
        faults: FaultLog,
        sees_state: bool = False,
        reads_costs: bool = False,
    ) -> None:
        self.env_indices, self._make_env = [int(env_index) for env_index in env_indices], make_env
        self.watchdog = watchdog
        self.faults = faults
        self._sees_state, self.reads_costs = sees_state, reads_costs
        with watchdog.on_guard():
            self.adapters = [self._open(env_index) for env_index in self.env_indices]
        self.states: list[Array | None] = [None] * len(self.env_indices)
        # The seed of each environment's last reset.
        self.seeds = [0] * len(self.env_indices)
        # The counts of environments that were closed.
        self._of_closed = np.zeros(2, np.int64)

    @property
    def first(self) -> EnvAdapter:
        """The first environment; all have the same agents and spaces."""
        return self.adapters[0]

    @property
    def counts(self) -> Array:
        """Number of agents that left without a mark, and of corrected actions, since opening, int64 [2]."""
        counts: Array = np.array([_counts_of(adapter) for adapter in self.adapters], np.int64).sum(axis=0)
        return self._of_closed + counts

    def act(self, index: int, actions: Sequence[Any]) -> StepResult:
        """Step one environment; raises EnvironmentFailed."""
        # `_call_guarded` written out, because this runs for every env step.
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

    def reset(self, index: int, seed: int, task: int | None = None) -> StepResult:
        """Start an episode, with a task number if given; raises EnvironmentFailed."""
        self.seeds[index] = seed
        adapter = self.adapters[index]

        def reset_adapter() -> StepResult:
            result = adapter.reset(seed, task)
            if self._sees_state:
                self.states[index] = adapter.state()
            return result

        return self._call_guarded(reset_adapter, adapter)

    def replace(self, index: int, failure: EnvironmentFailed, rows_lost: int) -> None:
        """Reopen an environment after `failure`, which counts as a fault.

        Raises EnvironmentFailed if reopening fails too often.
        """
        broken, env_index = self.adapters[index], self.env_indices[index]
        self.faults.add(failure, failure.reason, rows_lost)
        self._close(broken)
        while True:
            try:
                self.adapters[index] = self._open(env_index)
                return
            except EnvironmentFailed as again:
                self.faults.tolerate(again)
                self.faults.add(again, again.reason, 0)

    def reopen(self, index: int) -> None:
        """Reopen an environment without counting a fault."""
        broken = self.adapters[index]
        self._close(broken)
        self.adapters[index] = self._open(self.env_indices[index])

    def _open(self, env_index: int) -> EnvAdapter:
        watchdog, opening = self.watchdog, _EnvBeingMade(env_index)
        watchdog.begun += 1
        watchdog.playing = opening
        watchdog.doing = "making the environment"
        watchdog.loading = True
        try:
            # Not limited by the watchdog: loading may take longer than a step.
            env = self._maker(env_index)()
        finally:
            watchdog.loading = False
        adapter = self._call_guarded(lambda: open_adapter(env, env_index), opening)
        adapter.reads_costs = self.reads_costs
        return adapter

    def _maker(self, env_index: int) -> Callable[[], Any]:
        # One window is enough to watch, and each costs the time of its pictures.
        make_env = self._make_env
        return make_env.without_window() if env_index and isinstance(make_env, EnvMaker) else make_env

    def _call_guarded(self, call: Callable[[], _T], playing: NamedEnv) -> _T:
        watchdog = self.watchdog
        watchdog.begun += 1
        watchdog.playing, watchdog.doing = playing, "reset()"
        try:
            try:
                watchdog.inside = True
                return call()
            finally:
                watchdog.inside = False
        except Overdue as overdue:
            raise watchdog.hung_error(playing.where(), "reset()", overdue) from None

    def _close(self, broken: EnvAdapter) -> None:
        self._of_closed = self._of_closed + _counts_of(broken)
        if (fault := close_adapter(broken, self.watchdog.timeout_s)) is not None:
            self.faults.report(fault)

    def close(self, deadline_s: float) -> list[Fault]:
        """Close all environments by `deadline_s` of time.perf_counter; return faults."""
        faults = [close_adapter(adapter, deadline_s - perf_counter()) for adapter in self.adapters]
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
