"""The look of all figures, the labels of their axes, and how they are written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from marlflow.base.files import replacing

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
# Below this, and up to so many characters, numbers have neither a suffix nor an exponent.
_PLAIN_TO, _PLAIN_CHARACTERS = 1e4, 6
_MOST_DIGITS = 17


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

    A label is the whole number that it stands for: nothing is factored out at the end of the axis, and two different
    values never have the same label.

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
        if form is _plain and largest < _PLAIN_TO and candidates and _longest(candidates[0]) <= _PLAIN_CHARACTERS:
            return candidates[0]
    return min(candidates, key=_longest)


def _longest(labels: Sequence[str]) -> int:
    return max(map(len, labels), default=0)


def _plain(value: float, digits: int) -> tuple[str, float]:
    """Return a number with so many decimals, and the value that this is."""
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


def save_figure(figure: Figure, out_png: Path) -> None:
    """Write a figure as PNG, replacing an earlier one; raises OSError."""
    with replacing(out_png) as aside:
        figure.savefig(aside, format="png")
