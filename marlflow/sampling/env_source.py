"""The interface between a worker and its environments: for each env step, one table of lanes.

`EnvPool` fills it from the dicts of PettingZoo environments, `BatchedEnvPool` from arrays [B, A, ...]. A compiled call
returns the columns of a whole fragment instead (`sampling.compiled`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.info_columns import InfoColumn
from marlflow.env import EnvAdapter
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.receipts import Fault, FaultLog, fault_of
from marlflow.sampling.sampler_config import SamplerConfig
from marlflow.sampling.watchdog import NamedEnv, Overdue, Watchdog

_T = TypeVar("_T")
_NO_LANES = np.empty(0, np.int64)
_NO_AMOUNTS = np.empty(0, np.float64)


@dataclass(slots=True)
class LaneStep:
    """The events of one env step in all environments, or of the resets of some.

    `rewards`, float64 [N]: the rewards of `lanes` in order of receipt, where a lane may repeat; if `lanes` is None, of
    all lanes. `infos` [S, N]: the stepped info columns for the same lanes, NaN where there is no number; None without
    such columns. `ended` [E]: lanes whose agents ended after these rewards; `terminated`, bool [E]: whether they
    terminated; the others were truncated. `last`: lanes [N] and their info columns that are read at an end [L, N], for
    agents that ended and for all agents of an episode that is over; None if there are no such infos. `late_rewards`:
    rewards of dead agents, or from before the first action. `over`: environments without a living agent. `broken`:
    environments whose episodes broke, so that nothing in them counts; environments that broke together share one
    failure.

    `steady`: no agent ended or joined, nothing broke, and the same lanes act again, in the same order.
    """

    steady: bool = False
    lanes: Array | None = None
    rewards: Array = field(default_factory=lambda: _NO_AMOUNTS)
    infos: Array | None = None
    ended: Array = field(default_factory=lambda: _NO_LANES)
    terminated: Array = field(default_factory=lambda: _NO_LANES)
    last: tuple[Array, Array] | None = None
    late_lanes: Array = field(default_factory=lambda: _NO_LANES)
    late_rewards: Array = field(default_factory=lambda: _NO_AMOUNTS)
    over: list[int] = field(default_factory=list)
    broken: dict[int, EnvironmentFailed] = field(default_factory=dict)


class Finals(NamedTuple):
    """Final observations of N lanes by column, [N, ...] each; where there is no final action mask, it is all False.

    `missing`, bool [N], if not None: lanes without a final observation; all columns except `state` lack their rows.
    """

    seen: dict[str, Array]
    missing: Array | None = None


class EnvSource(ABC):
    """The environments of a worker: lane = `index` of the environment * `stride` + agent slot.

    `env_indices` are unique over all workers, an `index` is the position among them. Environments that broke are made
    again before their next reset. Unless overridden, all agents are declared and take part, none leaves without
    termination or truncation, and no wrapper corrects actions.
    """

    stride: int
    adapters: list[EnvAdapter]
    """The agents and spaces of each environment."""

    def __init__(self, config: SamplerConfig, env_indices: Sequence[int], watchdog: Watchdog, faults: FaultLog) -> None:
        self.env_indices = [int(env_index) for env_index in env_indices]
        self.watchdog, self.faults = watchdog, faults
        self.columns, self._sees_state = config.columns, bool(config.with_state)
        count = len(self.env_indices)
        # By environment: the seed of its last reset, the env steps of its episode, and whether it has one, [B].
        self.seeds, self.env_steps = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.is_running = np.zeros(count, bool)
        # Seconds in environments.
        self.env_s = 0.0
        # The global state of each environment, [B, ...], if policies see it.
        self.states: Array = np.empty(0)

    @property
    def first(self) -> EnvAdapter:
        """The first environment; all have the same agents and spaces."""
        return self.adapters[0]

    @property
    def counts(self) -> Array:
        """Number of agents that left without an end, and of corrected actions, since opening, int64 [2]."""
        return np.zeros(2, np.int64)

    @property
    def compile_s(self) -> float:
        """Seconds of calls that compiled, of all environments of this kind in the process."""
        return 0.0

    def seated(self, index: int) -> list[str] | None:
        """Return undeclared agents in the order of their slots.

        None: agents are declared, or the environment is discarded and will be opened again.
        """
        del index
        return None

    def seat(self, index: int, agents: Sequence[str]) -> None:
        """Give undeclared `agents` the first slots, in order, between two episodes."""
        del index, agents

    def appeared(self, index: int) -> set[int] | None:
        """Return the slots of agents that took part in an environment's episode; None: all."""
        del index
        return None

    @abstractmethod
    def failure(self, index: int, slot: int | None, reason: str) -> EnvironmentFailed:
        """Return the error of an environment, or of one agent of it."""

    @abstractmethod
    def reset(self, indices: Array, seeds: Array, tasks: Sequence[int | None]) -> LaneStep:
        """Start episodes in `indices` [N], with task numbers where given.

        Raises EnvironmentFailed if environments that broke cannot be made again.
        """

    @abstractmethod
    def halt(self, indices: Array) -> None:
        """Leave `indices` without an episode until their next reset."""

    @abstractmethod
    def discard(self, indices: Sequence[int]) -> None:
        """Discard the episodes of `indices`, which broke."""

    @abstractmethod
    def deciding(self) -> Array:
        """Return the lanes that wait for an action, in order, int64 [N]."""

    @abstractmethod
    def seen(self, acting: ActingPolicy) -> tuple[Any, Any, Array | None]:
        """Return observations, masks and states of the pending lanes of `acting`, for its `set_observations`."""

    @abstractmethod
    def clear_actions(self) -> None:
        """Forget the actions of the last step."""

    @abstractmethod
    def put_actions(self, acting: ActingPolicy, action: Array) -> None:
        """Set the next actions of the pending lanes of `acting`."""

    @abstractmethod
    def step(self, deciding: Array, is_read: Array | None) -> LaneStep:
        """Take one env step in every environment with an episode, by the actions of the lanes `deciding`.

        `is_read` bool [S, lanes]: whether a lane's stepped info columns are read; None: there are none.
        """

    @abstractmethod
    def finals(self, acting: ActingPolicy, lanes: Array) -> Finals:
        """Return the final observations of `lanes`, which are some of the lanes that ended in the last step.

        Raises ObservationOutside if a final observation does not fit its space.
        """

    @abstractmethod
    def close(self, deadline_s: float) -> list[Fault]:
        """Close all environments by `deadline_s` of time.perf_counter; return faults."""

    def _make(self, make: Callable[[], _T], playing: NamedEnv) -> _T:
        watchdog = self.watchdog
        watchdog.begun += 1
        watchdog.playing, watchdog.doing, watchdog.loading = playing, "making the environment", True
        try:
            # Not limited by the watchdog: loading may take longer than a step.
            return make()
        finally:
            watchdog.loading = False

    def _call(self, call: Callable[[], _T], playing: NamedEnv, doing: str) -> _T:
        watchdog = self.watchdog
        watchdog.begun += 1
        watchdog.playing, watchdog.doing = playing, doing
        try:
            try:
                watchdog.inside = True
                return call()
            finally:
                watchdog.inside = False
        except Overdue as overdue:
            raise watchdog.hung_error(playing.where(), doing, overdue) from None

    def _until_opened(self, make: Callable[[], _T]) -> _T:
        """Return the result of `make`, called again after failures; raises EnvironmentFailed after too many."""
        while True:
            try:
                return make()
            except EnvironmentFailed as again:
                self.faults.tolerate(again)
                self.faults.report(fault_of(again))


def lanes_in(indices: Array, stride: int) -> Array:
    """Return the lanes of the environments `indices` [N], int64 [N * stride]."""
    lanes: Array = (indices[:, None] * stride + np.arange(stride)).reshape(-1)
    return lanes


def too_many_agents(most: int) -> str:
    """Return the problem of an environment of more than `most` agents without `possible_agents`."""
    return f"more than {most} agents appeared; declare possible_agents"


class WrongReward(Exception):
    """A reward, at `position`, that is not a finite number."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


def reward_values(rewards: Sequence[Any]) -> Array:
    """Return `rewards` as float64 [N]; raises WrongReward for the first that is not a finite number."""
    try:
        values = np.array(rewards)
    except (TypeError, ValueError, OverflowError):
        values = np.empty(0)
    # Not converted before: numpy reads numbers in texts, too.
    if values.shape == (len(rewards),) and values.dtype.kind in "biuf" and np.isfinite(values).all():
        return values.astype(np.float64, copy=False)
    # One by one, to find the wrong reward or accept arrays of one number.
    return np.array([_finite(position, reward, "the reward") for position, reward in enumerate(rewards)])


def info_values(
    columns: Sequence[InfoColumn], infos: Sequence[Mapping[str, Any] | None], is_read: Array, acted: Array
) -> Array:
    """Return the columns of N agents' infos as float64 [K, N], NaN where not `is_read` (bool [K, N]) or not given.

    Numbers of agents that had not `acted` (bool [N]), since they were dead, count only if they are added up. Raises
    WrongReward for the first number that a column of rows lacks, or that is not finite.
    """
    values = np.empty((len(columns), len(infos)))
    for row, (column, used) in enumerate(zip(columns, is_read, strict=True)):
        given = [column.of(info) for info in infos]
        if column.is_in_rows:
            has_to_be = used & (acted | (column.adds & np.array([value is not None for value in given])))
            values[row] = _required(column, given, has_to_be)
        else:
            values[row] = np.where(acted | column.adds, _measured(given), np.nan)
    return values


def last_values(columns: Sequence[InfoColumn], infos: Sequence[Mapping[str, Any] | None]) -> Array | None:
    """Return the columns of N agents' last infos as float64 [K, N], NaN where not given; None if nothing is."""
    if not columns or not any(infos):
        return None
    values = np.array([_measured([column.of(info) for info in infos]) for column in columns])
    return None if np.isnan(values).all() else values


def _required(column: InfoColumn, given: Sequence[Any], is_read: Array) -> Array:
    values = np.asarray(given) if all(type(value) in _NUMBERS for value in given) else np.empty(0)
    if values.shape == is_read.shape and values.dtype.kind in "biuf" and np.isfinite(values).all():
        return np.where(is_read, values, np.nan)
    numbers = []
    for at, (value, used) in enumerate(zip(given, is_read.tolist(), strict=True)):
        if used and value is None:
            raise WrongReward(at, not_given(column))
        numbers.append(_finite(at, value, f"info[{column.key!r}]") if used else np.nan)
    return np.array(numbers)


def _measured(given: Sequence[Any]) -> list[float]:
    # A wrong figure of an episode does not break the episode.
    numbers = [None if value is None else _number(value) for value in given]
    return [np.nan if number is None else number for number in numbers]


def _number(value: Any) -> float | None:
    """Return a finite number, or an array of one, as a float; else None."""
    try:
        number = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    if number.size != 1 or number.dtype.kind not in "biuf" or not np.isfinite(number).all():
        return None
    return float(number.item())


_NUMBERS = frozenset({float, int, bool, np.float64, np.float32})


def not_given(column: InfoColumn) -> str:
    """Return the problem if an env step lacks a column of rows."""
    way_out = f"take {column.name!r} out of policies.<id>.columns and reward_from, and parts out that read it"
    return (
        f"step() gave no info[{column.key!r}] for an agent that acted, and its policy has a column {column.name!r}; "
        f"give 0.0 where there is none, or {way_out}"
    )


def _finite(position: int, value: Any, what: str) -> float:
    if (number := _number(value)) is None:
        several = (
            value.size > 1 if isinstance(value, np.ndarray) else isinstance(value, list | tuple) and len(value) > 1
        )
        way_out = "; a wrapper can weigh its objectives and add them up" if several else ""
        raise WrongReward(position, f"{what} is {value!r}, not a finite number{way_out}")
    return number
