"""Figures: their look, the labels of their axes, and the learning curves of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from marlflow.base.errors import InvalidInput
from marlflow.base.files import replacing
from marlflow.base.return_units import RETURN
from marlflow.observe.sinks import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


# Okabe and Ito's palette for color-blind readers (https://jfly.uni-koeln.de/color/).
COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK: Final = "#333333"
GRID: Final = "#DDDDDD"
NOTE: Final[dict[str, Any]] = {"loc": "left", "fontsize": 9, "color": "#666666"}
_SUFFIXES = ("", "k", "M", "G", "T")
# Numbers of at most _PLAIN_CHARACTERS have no exponent, and below _PLAIN_TO no suffix either.
_PLAIN_TO, _PLAIN_CHARACTERS = 1e4, 6
_MOST_DIGITS = 17
_MOST_NAMED = 24  # names in a legend; more would take the room of the axes


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure, of a size in inches."""
    # Without pyplot, whose state is global and whose backend may need a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14, fontweight="bold", color=INK, parse_math=False)
    return figure


def tick_labels(values: Sequence[float]) -> list[str]:
    """Return a label for each tick of an axis, as short as the distance of the ticks allows.

    A label is the complete number: nothing is factored out at the end of the axis, and two different values never have
    the same label.

    >>> tick_labels([0.0, 0.25, 0.5]), tick_labels([0.0, 500_000.0, 1_500_000.0]), tick_labels([2e-7, 0.0])
    (['0.00', '0.25', '0.50'], ['0', '500k', '1.5M'], ['2e−7', '0'])
    """
    known = sorted(set(values))
    largest = max(map(abs, known), default=0.0)
    steps = [after - before for before, after in itertools.pairwise(known)]
    # Ticks are sums of floats, such as 0.30000000000000004.
    tolerance = 1e-3 * min(steps) if steps else 1e-6 * (largest or 1.0)
    forms: list[Callable[[float, int], tuple[str, float]]] = [_plain, _suffixed, _exponential]
    candidates = []
    for form in forms:
        for digits in range(_MOST_DIGITS):
            written = [form(value, digits) for value in values]
            if all(abs(read - value) <= tolerance for value, (_, read) in zip(values, written, strict=True)):
                candidates.append([text.replace("-", "−") for text, _ in written])
                break
        # People read 100k, though 1e5 is shorter.
        is_known = form is _suffixed or (form is _plain and largest < _PLAIN_TO)
        if is_known and candidates and _longest(best := min(candidates, key=_longest)) <= _PLAIN_CHARACTERS:
            return best
    return min(candidates, key=_longest)


def _longest(labels: Sequence[str]) -> int:
    return max(map(len, labels), default=0)


def _plain(value: float, digits: int) -> tuple[str, float]:
    """Return a number with `digits` decimals as text, and the value of this text."""
    text = f"{value:,.{digits}f}"
    # None has a minus before a zero.
    return text.removeprefix("-") if not text.strip("-0.,") else text, float(text.replace(",", ""))


def _suffixed(value: float, digits: int) -> tuple[str, float]:
    power = next((power for power in range(len(_SUFFIXES) - 1, 0, -1) if abs(value) >= 1000.0**power), 0)
    text, read = _plain(value / 1000.0**power, digits)
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{_SUFFIXES[power]}", read * 1000.0**power


def _exponential(value: float, digits: int) -> tuple[str, float]:
    text = f"{value:.{digits}e}"
    mantissa, _, exponent = text.partition("e")
    return (f"{mantissa}e{int(exponent)}" if value else "0"), float(text)


def label_ticks(*several: Axis) -> None:
    """Label the ticks of some axes by `tick_labels`."""
    from matplotlib.ticker import Formatter

    class Labels(Formatter):
        def __call__(self, value: float, at: int | None = None) -> str:
            return tick_labels([value])[0]

        def format_ticks(self, values: Any) -> list[str]:
            return tick_labels([float(value) for value in values])

    for axis in several:
        axis.set_major_formatter(Labels())


def finish_axes(axes: Axes) -> None:
    """Draw grid, ticks and frame of axes over env steps."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(color=GRID, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.margins(x=0.01)
    label_ticks(axes.xaxis, axes.yaxis)


def legend_below(figure: Figure, colors: Mapping[str, str]) -> None:
    """Write the first names in their colors below the axes, as they are: none is taken for mathematics, or hidden."""
    from matplotlib.lines import Line2D

    names = list(colors)[:_MOST_NAMED]
    lines = [Line2D([], [], color=colors[name], linewidth=1.8) for name in names]
    if left_out := len(colors) - len(names):
        lines.append(Line2D([], [], linestyle="none"))
        names.append(f"and {left_out} more")
    below: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "ncols": 4, "labelcolor": INK}
    texts = figure.legend(lines, [""] * len(lines), **below).get_texts() if lines else []
    for text, name in zip(texts, names, strict=True):
        text.set(text=name, parse_math=False)


def save_figure(figure: Figure, out_png: Path) -> None:
    """Write a figure as PNG, replacing an earlier one; raises OSError."""
    with replacing(out_png) as aside:
        figure.savefig(aside, format="png")


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
    legend_below(figure, {**dict(_colored(reports)), **dict(teams)})
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
        # All policies are evaluated at once; only their metrics have the env steps.
        steps = [found["eval_env_steps"] for found in report["policies"].values() if found.get("eval_env_steps")]
        if value is not None and steps:
            known[steps[0]] = value
    return list(known), list(known.values())


def _draw_returns(axes: Axes, reports: Reports, everything: Reports) -> None:
    for policy, color in _colored(reports):
        axes.plot(*curve(reports, policy, "return_mean"), color=color, linewidth=1.8, **_dot(reports))
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
        axes.plot(steps, values, color=color, linewidth=1.8, **_dot(reports))
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
