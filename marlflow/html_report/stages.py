"""GroupSpeed, time shares of stages, and faults of groups of runs, from their last reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marlflow.html_report.groups import RunGroup
from marlflow.html_report.runs import ReportedRun, number, section

_STATES = ("busy_s", "starved_s", "blocked_s")


@dataclass(frozen=True, slots=True)
class StageShare:
    """Shares of a run's time that a stage was busy, waited for input and waited for room; means over runs.

    They do not add up to 1 where calls of a stage overlap, or a stage has several processes.
    """

    plan: str
    stage: str
    busy: float
    starved: float
    blocked: float


@dataclass(frozen=True, slots=True)
class GroupSpeed:
    """Env steps per second and seconds, means over the runs of a group; both include evaluations."""

    env_steps_per_s: float | None
    time_s: float


def speed(group: RunGroup) -> GroupSpeed:
    """Return the speed of a group."""
    rates = [run.env_steps / run.time_s for run in group.runs if run.time_s > 0]
    return GroupSpeed(_mean(rates) if rates else None, _mean([run.time_s for run in group.runs]))


def stage_shares(group: RunGroup) -> list[StageShare]:
    """Return the shares of all stages that have times, in the order of their plans."""
    runs = [run for run in group.runs if run.time_s > 0]
    names = dict.fromkeys(name for run in runs for name in section(run.last, "stages"))
    shares = list[StageShare]()
    for name in names:
        of_runs = [_shares(run, name) for run in runs if name in section(run.last, "stages")]
        busy, starved, blocked = (_mean([one[place] for one in of_runs]) for place in range(len(_STATES)))
        if busy or starved or blocked:
            plan, _, stage = name.rpartition("/")
            shares.append(StageShare(plan, stage, busy, starved, blocked))
    return shares


def _shares(run: ReportedRun, stage: str) -> list[float]:
    return [(number(run.last, "stages", stage, state) or 0.0) / run.time_s for state in _STATES]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def faults(run: ReportedRun) -> dict[str, int]:
    """Return the faults of a run that were counted, by name."""
    names = section(run.last, "faults")
    return {name: int(count) for name in names if (count := number(run.last, "faults", name))}
