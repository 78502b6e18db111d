"""The returns that a report compares, and each run's values of them over env steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from marlflow.base.return_units import RETURN, Units
from marlflow.html_report.runs import ReportedRun, number, section
from marlflow.html_report.statistics import Floats

Over: TypeAlias = Literal["env_steps", "times_s"]
"""The horizontal axis of a curve."""

ALL_AGENTS = "all agents"
"""The title of the return of all agents together."""

_EVERYBODY = "sum over all agents, per episode"
# Points of a group's curve.
_MOST_POINTS = 150


@dataclass(frozen=True, slots=True)
class Measure:
    """A return that every report may have.

    `key` is its path in a report, such as `policies.prey.eval_return_mean`; `title` says whose return it is, and `unit`
    which.
    """

    key: str
    title: str
    unit: str

    @property
    def is_evaluated(self) -> bool:
        """Whether its values come from evaluations rather than from training episodes."""
        return self.key.rpartition(".")[2].startswith("eval_")


@dataclass(frozen=True, slots=True)
class ReturnSeries:
    """A run's values of a measure, by env steps; `times_s` are seconds since the run began. All are `[points]`."""

    env_steps: Floats
    values: Floats
    times_s: Floats

    def __len__(self) -> int:
        return len(self.values)

    def x(self, over: Over) -> Floats:
        """Return the env steps or times of its points, which do not decrease."""
        # If a clock was set back, times would decrease.
        return self.env_steps if over == "env_steps" else np.maximum.accumulate(self.times_s)


def measures_of(runs: Sequence[ReportedRun], units: Units = "mean") -> list[Measure]:
    """Return the returns that runs of an environment have: of policies, of joint learners, of all agents together.

    Returns of policies are in `units`, the others are sums. All come from evaluations if any run has some, else from
    training. A return that is never known, or always equals another measure, is left out.
    """
    metric = {"mean": "return_mean", "sum": "team_return_mean"}[units]
    kinds = [(f"policies.{name}.", metric, f"policy {name}", RETURN[units]) for name in _ids(runs, "policies")]
    policies = len(kinds)
    joint = [name for name in _ids(runs, "learners") if name not in _ids(runs, "policies")]
    kinds += [(f"learners.{name}.", "team_return_mean", f"learner {name}", RETURN["sum"]) for name in joint]
    if policies > 1:
        kinds.append(("", "team_return_mean", ALL_AGENTS, _EVERYBODY))
    for start in ("eval_", ""):
        chosen: dict[Measure, list[ReturnSeries]] = {}
        for prefix, metric, title, unit in kinds:
            measure = Measure(f"{prefix}{start}{metric}", title, unit)
            found = [series(run, measure) for run in runs]
            if any(map(len, found)) and not _is_redundant(measure, found, chosen):
                chosen[measure] = found
        if chosen:
            return list(chosen)
    return []


def _ids(runs: Sequence[ReportedRun], kind: str) -> list[str]:
    return list(dict.fromkeys(name for run in runs for report in run.reports for name in section(report, kind)))


def _is_redundant(
    measure: Measure, found: Sequence[ReturnSeries], chosen: Mapping[Measure, Sequence[ReturnSeries]]
) -> bool:
    if measure.key.startswith("policies."):
        return False
    # In a game of zero sum it says nothing.
    if measure.unit == _EVERYBODY and all(np.allclose(one.values, 0.0, atol=1e-9) for one in found):
        return True
    known = [of for other, of in chosen.items() if measure.unit in {_EVERYBODY, other.unit}]
    return any(
        all(
            len(one) == len(other) and np.allclose(one.values, other.values)
            for one, other in zip(found, of, strict=True)
        )
        for of in known
    )


def series(run: ReportedRun, measure: Measure) -> ReturnSeries:
    """Return a run's known values of a measure; the last one at each env step counts."""
    path = measure.key.split(".")
    policy = _name(measure.key)
    path = [path[0], policy, path[-1]] if policy else path
    step_of = _evaluated_at(policy if path[0] == "policies" else None) if measure.is_evaluated else _reported_at
    points: dict[float, tuple[float, float]] = {}
    for report in run.reports:
        value, at = number(report, *path), step_of(report)
        if value is not None and at is not None:
            points[at] = (value, number(report, "time_s") or 0.0)
    steps = sorted(points)
    values, times_s = ([points[step][column] for step in steps] for column in range(2))
    return ReturnSeries(*(np.array(one, np.float64) for one in (steps, values, times_s)))


def _name(key: str) -> str:
    """Return the id in a key; it may have dots."""
    return key.partition(".")[2].rpartition(".")[0]


def _reported_at(report: Mapping[str, Any]) -> float | None:
    return number(report, "env_steps")


def _evaluated_at(policy: str | None) -> Callable[[Mapping[str, Any]], float | None]:
    """Return a function for the env steps of a report's evaluation: the evaluation of a policy, or the latest one."""

    def steps(report: Mapping[str, Any]) -> float | None:
        names: Iterator[str] = iter([policy] if policy is not None else list(section(report, "policies")))
        known = [number(report, "policies", name, "eval_env_steps") for name in names]
        return max((step for step in known if step is not None), default=_reported_at(report))

    return steps


def aligned(several: Sequence[ReturnSeries], over: Over = "env_steps") -> tuple[Floats, Floats]:
    """Return common env steps or times, `[points]`, and the values of each series there, `[series, points]`.

    They reach from the latest first one to the earliest last one; values between two points are interpolated.
    """
    known = [(one.x(over), one.values) for one in several if len(one)]
    first = max((at[0] for at, _ in known), default=0.0)
    last = min((at[-1] for at, _ in known), default=-1.0)
    common = np.unique(np.concatenate([at for at, _ in known])) if known else np.empty(0)
    common = common[(common >= first) & (common <= last)]
    if len(common) > _MOST_POINTS:
        common = np.linspace(first, last, _MOST_POINTS)
    return common, np.array([np.interp(common, at, values) for at, values in known])


def acting(run: ReportedRun, measure: Measure) -> frozenset[str]:
    """Return how policies acted in the evaluations of a measure, such as greedy; empty if it is not recorded."""
    name = _name(measure.key) if measure.key.startswith("policies.") else None
    found = {
        mode
        for report in run.reports
        for policy in ([name] if name is not None else section(report, "policies"))
        if isinstance(mode := section(report, "policies", policy).get("eval_mode"), str)
    }
    configured = section(run.config, "evaluation").get("mode")
    # Earlier versions did not report it.
    return frozenset(found or ({configured} if isinstance(configured, str) else ()))
