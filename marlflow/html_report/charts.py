"""Learning curves as inline SVG, whose colors are CSS variables of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marlflow.html_report.measures import ReturnSeries, aligned
from marlflow.html_report.results import GroupComparison
from marlflow.html_report.statistics import Floats, iqm, iqm_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = 7
"""Number of colors of the page, `--series-0` and so on."""
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5))
MOST_COLORED = COLORS * len(_DASHES)
"""Number of groups with a look of their own."""
MOST_WITH_BANDS = 7
"""Number of groups up to which bands and single runs are drawn; of more, nothing could be told apart."""
_WIDTH, _HEIGHT = 4.6, 2.9  # inches of 72 units
_MOST_POINTS = 300
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
    """Return the look of a task's group by its place among those with one; None for the others."""
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


def curves(comparison: GroupComparison, looks: dict[str, Look], name: str) -> str:
    """Return the learning curves of all groups as an SVG element.

    `looks` are by the names of groups; `name` is unique on the page.
    """
    lines = [CurveLine(row.series, looks[row.group.name]) for row in comparison.rows]
    return drawn_curves(lines, name, len(lines) <= MOST_WITH_BANDS)


def drawn_curves(lines: Sequence[CurveLine], name: str, has_bands: bool = True) -> str:
    """Return curves as an SVG element, whose ids begin with `name`; without `has_bands` no single runs either."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9, "path.simplify_threshold": 0.2}):
        figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=72, layout="constrained", facecolor="none")
        axes = figure.subplots()
        axes.set_facecolor("none")
        # Lines without a look of their own are drawn first, below the others.
        for line in sorted(lines, key=lambda line: line.look.color != _OTHERS):
            _draw(axes, line, has_bands)
        _finish(axes)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(written.getvalue(), name)


def _draw(axes: Axes, curve: CurveLine, has_band: bool) -> None:
    several, look = curve.series, curve.look
    steps, values = aligned(several)
    is_background = look.color == _OTHERS
    if len(several) > 1 and has_band:
        for one in several:
            axes.plot(*_thinned(one), color=look.color, linewidth=0.6, alpha=0.45, **_dot(one.env_steps, 2.0))
        if len(steps):
            low, high = iqm_band(values)
            # A band over a single point has no area; it is drawn as a line.
            axes.fill_between(steps, low, high, color=look.color, alpha=0.18, linewidth=2.0 * (len(steps) == 1))
    if curve.level is not None:
        axes.axhline(curve.level, color=look.color, linewidth=1.2, linestyle=(0, (1, 2)))
    line = _thinned(several[0]) if len(several) == 1 else (steps, iqm(values))
    width = 1.0 if is_background else 1.9
    (drawn,) = axes.plot(*line, color=look.color, linewidth=width, label=curve.title, **_dot(line[0], 3.5))
    if look.dashes:
        drawn.set_dashes(look.dashes)


def _dot(steps: Floats, size: float) -> dict[str, Any]:
    """Return the marker of a curve of a single point, which would be invisible."""
    return {"marker": "o", "markersize": size, "clip_on": False} if len(steps) == 1 else {}


def _thinned(one: ReturnSeries) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.unique(np.linspace(0, len(one) - 1, min(len(one), _MOST_POINTS)).round().astype(int))
    return one.env_steps[chosen], one.values[chosen]


def _finish(axes: Axes) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.grid(color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(color=_GRID, labelcolor=_INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("env steps", color=_INK)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, labelcolor=_INK, borderpad=0)


def _inline(svg: str, name: str) -> str:
    """Return the SVG element alone, with ids of its own, in the page's colors and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    # A page of many runs is mostly coordinates.
    svg = re.sub(r"(\d\.\d)\d+", r"\1", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" aria-hidden="true" id="{name}">', svg, count=1
    )
