"""Settings that change with a policy's agent steps, so that a resume continues exactly.

>>> Linear(1.0, 0.05, agent_steps=10_000).at(5_000)
0.525
>>> CosineDecay(1e-3, 0.0, agent_steps=100).at(50)
0.0005
>>> PiecewiseConstant([0.1, 0.01], at_agent_steps=[1_000]).at(1_000)
0.01
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from marlflow.base.errors import ConfigInvalid
from marlflow.base.ranges import Finite, Steps


@runtime_checkable
class Schedule(Protocol):
    """A number that depends on a policy's agent steps."""

    def at(self, agent_steps: int) -> float:
        """Return the value after `agent_steps`."""
        ...


_Number = TypeVar("_Number", bound=float)
OrSchedule: TypeAlias = _Number | Schedule
"""A number or a schedule of numbers: `OrSchedule[Share]` is held to the range of a `Share` all the time."""
ScheduledFloat: TypeAlias = float | Schedule
"""A number or a schedule."""
_PLAIN = (bool, int, float, str, tuple, type(None))


@dataclass(frozen=True, slots=True)
class Linear:
    """Changes linearly from `start` to `end` over `agent_steps`, then stays."""

    start: Finite  #: initial value
    end: Finite  #: final value
    agent_steps: Steps  #: agent steps until the final value

    def __post_init__(self) -> None:
        _check_length(self.agent_steps)

    def at(self, agent_steps: int) -> float:
        return self.start + min(1.0, agent_steps / self.agent_steps) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class CosineDecay:
    """Changes from `start` to `end` along half a cosine over `agent_steps`, then stays (arXiv:1608.03983)."""

    start: Finite
    end: Finite
    agent_steps: Steps

    def __post_init__(self) -> None:
        _check_length(self.agent_steps)

    def at(self, agent_steps: int) -> float:
        progress = min(1.0, agent_steps / self.agent_steps)
        return self.end + 0.5 * (self.start - self.end) * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True)
class PiecewiseConstant:
    """Starts at the first of `values` and takes the next at each of `at_agent_steps`.

    Raises ConfigInvalid unless there is one value more than steps, and the steps increase.
    """

    values: Sequence[Finite]
    at_agent_steps: Sequence[Steps]

    def __post_init__(self) -> None:
        if not self.values or len(self.values) != len(self.at_agent_steps) + 1:
            values, steps = len(self.values), max(0, len(self.values) - 1)
            raise ConfigInvalid(
                [f"a PiecewiseConstant of {values} values has {steps} at_agent_steps: the first is from 0 on"]
            )
        # The 0 in front demands that the first step is above 0.
        if any(later <= earlier for earlier, later in pairwise((0, *self.at_agent_steps))):
            raise ConfigInvalid(
                [f"the at_agent_steps of a PiecewiseConstant are above 0 and grow, not {[*self.at_agent_steps]}"]
            )

    def at(self, agent_steps: int) -> float:
        return self.values[bisect_right(self.at_agent_steps, agent_steps)]


def initial_value(setting: ScheduledFloat) -> float:
    """Return a setting's value at agent step 0."""
    return float(setting.at(0)) if isinstance(setting, Schedule) else float(setting)


def scheduled(settings: Any, agent_steps: int) -> Mapping[str, float]:
    """Return a dataclass's scheduled values after `agent_steps`, by field name."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    # Most settings are plain, and to check a value against a protocol takes 50 times as long as to check its type.
    return {
        name: float(value.at(agent_steps))
        for name, value in values.items()
        if not isinstance(value, _PLAIN) and isinstance(value, Schedule)
    }


def _check_length(agent_steps: int) -> None:
    if agent_steps < 1:
        raise ConfigInvalid([f"agent_steps of a schedule must be at least 1, not {agent_steps}"])
