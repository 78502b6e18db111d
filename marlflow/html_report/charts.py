"""Learning curves and returns by setting as inline SVG, whose colors are CSS variables of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marlflow.html_report.measures import Over, ReturnSeries, aligned
from marlflow.html_report.results import GroupComparison, SweptSetting
from marlflow.html_report.statistics import Floats, Profile, iqm, iqm_band
from marlflow.observe.figure import label_ticks, tick_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = 7
"""Number of colors of the page, `--series-0` and so on."""
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5))
MOST_COLORED = COLORS * len(_DASHES)
"""Number of groups with a look of their own."""
MOST_WITH_BANDS = 7
"""The most groups with bands and single runs; with more, the figure could not be read."""
_WIDTH, _HEIGHT = 4.6, 2.9  # inches of 72 units
_LEGEND_CHARACTERS, _SIGN_CHARACTERS = 66, 9
"""Characters of a legend in one line, and those that have room in the sign of an entry."""
_MOST_POINTS = 300
# Units of the time axis: used for axes of at least this many seconds; seconds in a unit; name.
_TIME_UNITS = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))
# Ticks closer than this share of an axis would have labels in each other's way.
_LEAST_BETWEEN_TICKS = 0.09
# Placeholders, which are replaced by CSS variables after the figure is drawn.
_INK, _GRID, _OTHERS = "#0a0c00", "#0a0c01", "#0a0c02"
_VARIABLES = {_INK: "--muted", _GRID: "--grid", _OTHERS: "--others"} | {
    f"#0a0b{number:02x}": f"--series-{number}" for number in range(COLORS)
}


@dataclass(frozen=True, slots=True)
class Look:
    """The color and dashes of a group's curve; both empty for one of many that share one look."""

    color: str
    dashes: tuple[float, ...] = ()

    @property
    def variable(self) -> str:
        """The CSS variable of the color."""
        return _VARIABLES[self.color]


def look(place: int | None) -> Look:
    """Return the look of a task's group by its place among the groups that have one; None for the others."""
    if place is None:
        return Look(_OTHERS)
    return Look(f"#0a0b{place % COLORS:02x}", _DASHES[place // COLORS % len(_DASHES)])


@dataclass(frozen=True, slots=True)
class CurveLine:
    """The curve of some runs, at least one; `title` is for a legend, and `level` is drawn across, to compare with."""

    series: Sequence[ReturnSeries]
    look: Look
    title: str = ""
    level: float | None = None


def curves(comparison: GroupComparison, looks: dict[str, Look], name: str, over: Over = "env_steps") -> str:
    """Return the learning curves of all groups as an SVG element.

    `looks` are by the names of groups; `name` is unique on the page.
    """
    lines = [CurveLine(row.series, looks[row.group.name]) for row in comparison.rows]
    return drawn_curves(lines, name, len(lines) <= MOST_WITH_BANDS, over, comparison.axis)


def drawn_curves(
    lines: Sequence[CurveLine], name: str, has_bands: bool = True, over: Over = "env_steps", returns: str = ""
) -> str:
    """Return curves as an SVG element, whose ids begin with `name`; without `has_bands` no single runs either.

    `returns` is the label of the vertical axis.
    """
    longest = max((one.x(over)[-1] for line in lines for one in line.series if len(one)), default=0.0)
    seconds, unit = next((seconds, unit) for least, seconds, unit in _TIME_UNITS if longest >= least)
    scale, label = (1.0, "env steps") if over == "env_steps" else (seconds, f"elapsed time ({unit})")

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        # Lines without a look of their own are drawn first, below the others.
        for line in sorted(lines, key=lambda line: line.look.color != _OTHERS):
            _draw(axes, line, has_bands, over, scale)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=over == "env_steps"))
        label_ticks(axes.xaxis)
        axes.set_xlabel(label, color=_INK)
        axes.set_ylabel(returns, color=_INK, parse_math=False)
        if titles := axes.get_legend_handles_labels()[1]:
            # Wider legends would take the width from the axes.
            columns = max(1, min(3, _LEGEND_CHARACTERS // (max(map(len, titles)) + _SIGN_CHARACTERS)))
            axes.legend(
                loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, labelcolor=_INK, borderpad=0
            )

    return _drawn(draw, name)


def by_setting(swept: SweptSetting, name: str, returns: str) -> str:
    """Return the final returns over a setting as an SVG element, whose ids begin with `name`.

    `returns` is the label of the vertical axis.

    A line connects groups that are equal in all other settings; its look depends on its place in `swept.lines`.
    """

    def draw(axes: Axes) -> None:
        for place, line in enumerate(swept.lines):
            color, dashes = look(place).color, look(place).dashes
            values = [value for value, _ in line.points]
            (drawn,) = axes.plot(
                values,
                [row.final.value for _, row in line.points],
                color=color,
                linewidth=1.4,
                marker="o",
                markersize=4,
            )
            if not swept.connected:
                drawn.set_linestyle("none")
            elif dashes:
                drawn.set_dashes(dashes)
            for value, row in line.points:
                if row.final.low is not None and row.final.high is not None:
                    axes.vlines(value, row.final.low, row.final.high, color=color, linewidth=1.2)
        _scale_by(axes, swept)
        axes.set_xlabel(swept.name, color=_INK, parse_math=False)
        axes.set_ylabel(returns, color=_INK, parse_math=False)

    return _drawn(draw, name)


def profiles(lines: Sequence[tuple[Profile, Look]], name: str) -> str:
    """Return performance profiles as an SVG element, whose ids begin with `name`."""

    def draw(axes: Axes) -> None:
        for profile, look in lines:
            if profile.low is not None and profile.high is not None:
                ends = profile.low, profile.high
                axes.fill_between(profile.at, *ends, step="post", color=look.color, alpha=0.18, linewidth=0)
            (drawn,) = axes.plot(profile.at, profile.share, drawstyle="steps-post", color=look.color, linewidth=1.9)
            if look.dashes:
                drawn.set_dashes(look.dashes)
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("normalized score", color=_INK)
        axes.set_ylabel("share of runs with a higher score", color=_INK)

    return _drawn(draw, name)


def _scale_by(axes: Axes, swept: SweptSetting) -> None:
    """Scale the axis of a setting, with ticks at its values as far as their labels have room."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    values = swept.values
    if swept.scale == "log":
        axes.set_xscale("log")
    elif swept.scale == "symlog":
        axes.set_xscale("symlog", linthresh=values[1], linscale=0.5)
    axes.margins(x=0.06)
    axes.autoscale_view()
    places = axes.transAxes.inverted().transform(axes.transData.transform([(value, 0.0) for value in values]))[:, 0]
    chosen = [0]
    for at, place in enumerate(places):
        if place - places[chosen[-1]] >= _LEAST_BETWEEN_TICKS:
            chosen.append(at)
    if len(chosen) == len(values) or swept.scale != "linear":
        ticks = [values[at] for at in chosen]
        axes.set_xticks(ticks, [tick_labels([tick])[0] for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
        label_ticks(axes.xaxis)


def _drawn(draw: Callable[[Axes], None], name: str) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9, "path.simplify_threshold": 0.2}):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=72, layout="constrained", facecolor="none")
        axes = figure.subplots()
        axes.set_facecolor("none")
        axes.margins(x=0.01)
        draw(axes)
        _finish(axes)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(written.getvalue(), name)


def _draw(axes: Axes, curve: CurveLine, has_band: bool, over: Over, scale: float) -> None:
    several, look = curve.series, curve.look
    at, values = aligned(several, over)
    at = at / scale
    is_background = look.color == _OTHERS
    if len(several) > 1 and has_band:
        for one in several:
            thin = _thinned(one, over, scale)
            axes.plot(*thin, color=look.color, linewidth=0.6, alpha=0.45, **_dot(thin[0], 2.0))
        if len(at):
            low, high = iqm_band(values)
            # A band over a single point has no area; it is drawn as a line.
            axes.fill_between(at, low, high, color=look.color, alpha=0.18, linewidth=2.0 * (len(at) == 1))
    if curve.level is not None:
        axes.axhline(curve.level, color=look.color, linewidth=1.2, linestyle=(0, (1, 2)))
    line = _thinned(several[0], over, scale) if len(several) == 1 else (at, iqm(values))
    width = 1.0 if is_background else 1.9
    (drawn,) = axes.plot(*line, color=look.color, linewidth=width, label=curve.title, **_dot(line[0], 3.5))
    if look.dashes:
        drawn.set_dashes(look.dashes)


def _dot(at: Floats, size: float) -> dict[str, Any]:
    """Return the marker of a curve of a single point, which would be invisible."""
    return {"marker": "o", "markersize": size, "clip_on": False} if len(at) == 1 else {}


def _thinned(one: ReturnSeries, over: Over, scale: float) -> tuple[Floats, Floats]:
    chosen = np.unique(np.linspace(0, len(one) - 1, min(len(one), _MOST_POINTS)).round().astype(int))
    return one.x(over)[chosen] / scale, one.values[chosen]


def _finish(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(color=_GRID, labelcolor=_INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    label_ticks(axes.yaxis)


def _inline(svg: str, name: str) -> str:
    """Return the SVG element alone, with ids of its own, in the page's colors and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    # Only tags are changed, because the text between them is labels.
    svg = re.sub(r"<[^>]*>", lambda tag: _inline_tag(tag[0], name), svg)
    return re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" aria-hidden="true" id="{name}">', svg, count=1
    )


def _inline_tag(tag: str, name: str) -> str:
    tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag)
    for color, variable in _VARIABLES.items():
        tag = tag.replace(color, f"var({variable})")
    # A page of many runs is mostly coordinates.
    return re.sub(r' (?:d|x|y)="[^"]*"', _rounded, tag) if tag.startswith(("<path", "<use")) else tag


def _rounded(attribute: re.Match[str]) -> str:
    return re.sub(r"\d+\.\d{2,}", lambda number: f"{float(number[0]):.1f}", attribute[0])
