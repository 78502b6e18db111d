"""Axes of figures, read back from their SVG: where each tick is, and what its label says."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

# Coordinates of a report are rounded to a tenth of a point; a wrong digit moves a label by several.
TOLERANCE = 0.12
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_NUMBER = re.compile(r"(?P<number>[-−]?[\d,]*\.?\d+(?:e[-−+]?\d+)?)(?P<unit>[kMGT]?)")
_XLINK = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'


@dataclass(frozen=True)
class Axis:
    """The ticks with a label of one axis: `kind` is x or y, `places` are in points from the left or from the top."""

    kind: str
    places: list[float]
    labels: list[str]

    @property
    def values(self) -> list[float]:
        return [value_of(label) for label in self.labels]

    def value_at(self, place: float) -> float:
        """The value at a place of a linear axis, by its labels."""
        slope, start = np.polyfit(self.places, self.values, 1)
        return float(slope * place + start)


def value_of(label: str) -> float:
    """What a reader takes a label for; raises ValueError if it is no number."""
    found = _NUMBER.fullmatch(label)
    if found is None:
        raise ValueError(f"{label!r} is no number")
    return float(found["number"].replace("−", "-").replace(",", "")) * _UNITS[found["unit"]]


def axes_in(svg: str) -> list[Axis]:
    """The axes of an SVG text, or of all SVG elements of a page."""
    return [axis for element in re.findall(r"<svg.*?</svg>", svg, re.DOTALL) for axis in _axes(element)]


def as_svg(figure: Figure) -> str:
    """A figure that is otherwise written as PNG."""
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none"}):
        figure.savefig(written, format="svg")
    return written.getvalue()


def _axes(svg: str) -> Iterator[Axis]:
    if "xmlns:xlink" not in svg:
        svg = f"{_XLINK}{svg}</svg>"
    for group in ElementTree.fromstring(svg).iter():
        if not re.search(r"matplotlib\.axis_\d+$", group.get("id", "")):
            continue
        for kind in "xy":
            ticks = [tick for one in group if (tick := _tick(one, kind)) is not None]
            if ticks:
                yield Axis(kind, [place for place, _ in ticks], [label for _, label in ticks])


def _tick(group: Any, kind: str) -> tuple[float, str] | None:
    if not re.search(rf"{kind}tick_\d+$", group.get("id", "")):
        return None
    marks = [one for one in group.iter() if one.tag.endswith("use")]
    texts = ["".join(one.itertext()).strip() for one in group.iter() if one.tag.endswith("text")]
    if not any(texts) or not marks:
        return None
    (label,) = texts
    return float(marks[-1].get(kind)), label


def assert_labels_are_true(
    axis: Axis, scales: Sequence[Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = (np.asarray, np.log10)
) -> None:
    """Labels are different, and their values are as far apart as their ticks, by one of some scales."""
    assert len(set(axis.labels)) == len(axis.labels), f"equal labels: {axis}"
    assert len(axis.labels) > 1, axis
    values = np.array(axis.values)
    residuals = []
    for scale in scales:
        with np.errstate(all="ignore"):
            scaled = scale(values)
        if np.isfinite(scaled).all():
            fit = np.polyfit(scaled, axis.places, 1)
            residuals.append(float(np.abs(np.polyval(fit, scaled) - axis.places).max()))
    assert min(residuals) <= TOLERANCE, f"labels and ticks disagree by {min(residuals)} points: {axis}"
