"""Plots a run's learning curves from its `metrics.jsonl`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from marlflow.base.errors import InvalidInput
from marlflow.base.return_units import RETURN
from marlflow.observe.figure import COLORS, INK, NOTE, finish_axes, new_figure, save_figure
from marlflow.observe.sinks import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Lower: TypeAlias = Literal["updates_per_s", "staleness_mean"]
Curve: TypeAlias = tuple[list[float], list[float]]  # env steps and values
Reports: TypeAlias = Sequence[dict[str, Any]]

_LOWER_LABELS: dict[Lower, str] = {"updates_per_s": "updates per second", "staleness_mean": "staleness (versions)"}


def draw_learning_curves(
    metrics_path: Path, out_png: Path, title: str | None = None, lower: Lower = "updates_per_s"
) -> None:
    """Plot each policy's training and evaluation returns over env steps, and `lower` in the last panel.

    Learners of several policies have their team's returns in a panel between.

    Raises InvalidInput if the file has no reports, OSError if the picture cannot be written.
    """
    everything = read_metrics(metrics_path)
    # The final report may repeat the env step of the one before; it includes the updates finished since.
    reports = list({report["env_steps"]: report for report in everything}.values())
    if not reports:
        raise InvalidInput([f"{metrics_path} has no report yet; it gets one every log.every_env_steps env steps"])
    teams = _teams(reports)
    height, ratios = (8.5, (2.2, 1.5, 1.0)) if teams else (6.5, (2.2, 1.0))
    figure = new_figure(9.0, height, title or metrics_path.resolve().parent.name)
    returns, *between, below = figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios)
    _draw_returns(returns, reports, everything)
    for axes in between:
        _draw_team_returns(axes, reports, everything, teams)
    _draw_lower(below, reports, lower)
    figure.legend(loc="outside lower center", frameon=False, ncols=4, labelcolor=INK)
    save_figure(figure, out_png)


def curve(reports: Reports, name: str, key: str, section: Literal["policies", "learners"] = "policies") -> Curve:
    """Return the known values of a policy's or learner's metric, over env steps."""
    known = [(report["env_steps"], report[section].get(name, {}).get(key)) for report in reports]
    known = [(steps, value) for steps, value in known if value is not None and math.isfinite(value)]
    return [steps for steps, _ in known], [value for _, value in known]


def updates_per_s(reports: Reports, learner: str) -> Curve:
    """Return a learner's optimizer steps per second, over env steps."""
    steps, rates = list[float](), list[float]()
    for before, now in itertools.pairwise(reports):
        seconds = now["time_s"] - before["time_s"]
        if seconds > 0 and learner in before["learners"] and learner in now["learners"]:
            done = now["learners"][learner]["updates"] - before["learners"][learner]["updates"]
            steps.append(now["env_steps"])
            rates.append(done / seconds)
    return steps, rates


def _colored(reports: Reports, section: Literal["policies", "learners"] = "policies") -> list[tuple[str, str]]:
    """Return the policies, or the learners, with their colors; a learner with a policy's name has its color."""
    names = dict.fromkeys(name for of in ("policies", "learners") for report in reports for name in report[of])
    colors = {name: COLORS[place % len(COLORS)] for place, name in enumerate(names)}
    section_names = dict.fromkeys(name for report in reports for name in report[section])
    return [(name, colors[name]) for name in section_names]


def evaluations(reports: Reports, policy: str) -> list[tuple[float, float, float]]:
    """Return a policy's evaluations: env steps, mean return, standard deviation."""
    metrics = [report["policies"][policy] for report in reports if policy in report["policies"]]
    # Keyed by env step, so that the last evaluation at each one wins.
    known = {report["eval_env_steps"]: report for report in metrics if report["eval_return_mean"] is not None}
    return [(steps, report["eval_return_mean"], report["eval_return_std"] or 0.0) for steps, report in known.items()]


def team_evaluations(reports: Reports, learner: str) -> Curve:
    """Return the mean team returns of a learner's evaluations, over env steps."""
    known: dict[float, float] = {}
    for report in reports:
        value = report["learners"].get(learner, {}).get("eval_team_return_mean")
        # All policies are evaluated at once, and only their metrics tell when.
        steps = [found["eval_env_steps"] for found in report["policies"].values() if found.get("eval_env_steps")]
        if value is not None and steps:
            known[steps[0]] = value
    return list(known), list(known.values())


def _draw_returns(axes: Axes, reports: Reports, everything: Reports) -> None:
    for policy, color in _colored(reports):
        axes.plot(*curve(reports, policy, "return_mean"), color=color, linewidth=1.8, label=policy, **_dot(reports))
        if measured := evaluations(everything, policy):
            steps, means, stds = (np.array(column, float) for column in zip(*measured, strict=True))
            axes.plot(steps, means, color=color, linewidth=1.2, linestyle=(0, (4, 2)), marker="o", markersize=3)
            axes.fill_between(steps, means - stds, means + stds, color=color, alpha=0.12, linewidth=0)
    axes.set_ylabel(RETURN["mean"], color=INK)
    finish_axes(axes)
    modes = {policy.get("eval_mode") for report in reports for policy in report["policies"].values()} - {None}
    evaluation = " ".join(["evaluation", *([f"({', '.join(sorted(modes))})"] if modes else [])])
    axes.set_title(f"solid: training, exploration included; dots: {evaluation}, shaded: one standard deviation", **NOTE)


def _teams(reports: Reports) -> list[tuple[str, str]]:
    """Return the learners that are not named like their only policy, with their colors."""
    policies = dict(_colored(reports))
    return [(name, color) for name, color in _colored(reports, "learners") if name not in policies]


def _draw_team_returns(axes: Axes, reports: Reports, everything: Reports, teams: Sequence[tuple[str, str]]) -> None:
    for learner, color in teams:
        steps, values = curve(reports, learner, "team_return_mean", "learners")
        axes.plot(steps, values, color=color, linewidth=1.8, label=learner, **_dot(reports))
        steps, values = team_evaluations(everything, learner)
        axes.plot(steps, values, color=color, linewidth=1.2, linestyle=(0, (4, 2)), marker="o", markersize=3)
    axes.set_ylabel(RETURN["sum"], color=INK)
    finish_axes(axes)


def _draw_lower(axes: Axes, reports: Reports, lower: Lower) -> None:
    draw: dict[Lower, Callable[[str], Curve]] = {
        "updates_per_s": lambda learner: updates_per_s(reports, learner),
        "staleness_mean": lambda learner: curve(reports, learner, "staleness_mean", "learners"),
    }
    for learner, color in _colored(reports, "learners"):
        steps, values = draw[lower](learner)
        # A learner without updates gets no line at zero.
        if any(values) or lower == "staleness_mean":
            # Unclipped, so that the axis does not hide half of a line at zero. The panels above have its label.
            axes.plot(steps, values, color=color, linewidth=1.5, clip_on=False, zorder=3, **_dot(reports))
    axes.set_ylabel(_LOWER_LABELS[lower], color=INK)
    finish_axes(axes)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("env steps", color=INK)


def _dot(reports: Reports) -> dict[str, Any]:
    # A curve of one point is invisible without a marker.
    return {"marker": "o", "markersize": 3} if len(reports) <= 12 else {}
