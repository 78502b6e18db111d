"""The look of all figures, and how they are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette for color-blind readers (https://jfly.uni-koeln.de/color/).
COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK: Final = "#333333"
GRID: Final = "#DDDDDD"
NOTE: Final[dict[str, Any]] = {"loc": "left", "fontsize": 9, "color": "#666666"}


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure, of a size in inches."""
    # Without pyplot, whose state is global and whose backend may need a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=14, fontweight="bold", color=INK, parse_math=False)
    return figure


def finish_axes(axes: Axes) -> None:
    """Draw grid, ticks and frame of axes over env steps."""
    from matplotlib.ticker import EngFormatter

    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(color=GRID, labelcolor=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GRID)
    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def save_figure(figure: Figure, out_png: Path) -> None:
    """Write a figure as PNG, replacing an earlier one; raises OSError."""
    # Written aside and renamed, so that a failed write keeps the old picture.
    aside = out_png.with_name(f".{out_png.name}.part")
    try:
        figure.savefig(aside, format="png")
        os.replace(aside, out_png)
    finally:
        aside.unlink(missing_ok=True)
