"""The page in a real browser, without a network: its numbers are those of the CSV, and it fits its window."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marlflow.html_report.report import write_report
from marlflow.runs.run_state import write_state
from tests.html_report import browser
from tests.html_report.written import write_evaluation, write_seeds

pytestmark = pytest.mark.skipif(browser.executable() is None, reason="there is no browser")

_CELLS = """
JSON.stringify([...document.querySelectorAll("tr[data-group] data")].map(cell => {
  const row = cell.closest("tr").dataset, over = cell.closest("td").dataset.over ?? null;
  return {...row, over, column: cell.dataset.column, value: cell.value, shown: cell.innerText,
          visible: cell.getBoundingClientRect().width > 0};
}))
"""
_TEXTS = ("mode", "statistic", "interval")
# Elements that reach beyond the window, but for those in an area that scrolls.
_TOO_WIDE = """
JSON.stringify([...document.querySelectorAll("body *")].filter(one =>
  one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll") && !one.closest("pre")
).map(one => one.outerHTML.slice(0, 200)))
"""


# Of labels in figures, which grow and shrink with the window.
_SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll(".chart svg text")].map(text => text.getBoundingClientRect().height))
"""
_READABLE_PX = 9.5


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on two groups and a long name."""
    folder = tmp_path_factory.mktemp("report")
    a = write_seeds(folder / "a", [[-1.0, 1234.5 + seed, 20.25 * seed] for seed in range(4)], queue="a" * 30)
    b = write_seeds(folder / "b", [[-2.0, 3.5, -1e-3 - seed] for seed in range(5)], queue="b")
    write_evaluation(a / "0", 1)
    write_evaluation(b / "0", 1, checkpoint="long" * 30)
    write_state(a / "0", "failed", "a reason=" * 30)
    write_report([a, b], folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Page]:
    with browser.page(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


def shown_value(text: str) -> float:
    units = {"s": 1.0, "min": 60.0, "h": 3600.0}
    words = text.replace("−", "-").replace(",", "").split()
    if len(words) == 1:
        return float(words[0])
    return sum(float(number) * units[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


def agrees(cell: dict[str, Any]) -> bool:
    """Whether the text is the value, rounded; a dash stands for no value."""
    if cell["value"] == "":
        return bool(cell["shown"] == "–")
    exact, shown = float(cell["value"]), shown_value(cell["shown"])
    digits = len(cell["shown"].partition(" ")[0].partition(".")[2])
    return abs(exact - shown) <= 0.5 * 10**-digits * 1.0001


@pytest.mark.parametrize("width", [1280, 500, 390])
def test_every_number_is_that_of_the_csv(out: Path, tab: browser.Page, width: int) -> None:
    tab.open(out / "index.html", width)
    cells = json.loads(tab.value(_CELLS))
    with (out / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["environment"], row["measure"], row["group"]): row for row in csv.DictReader(file)}
    with (out / "improvement.csv").open(encoding="utf-8", newline="") as file:
        pairs = {(row["measure"], row["group"], row["over"]): row for row in csv.DictReader(file)}
    assert all(cell["visible"] and agrees(cell) for cell in cells)
    known = set()
    for cell in cells:
        if cell["over"] is None:
            row = rows[cell["environment"], cell["measure"], cell["group"]]
        else:
            row = pairs[cell["measure"], cell["group"], cell["over"]]
        assert cell["value"] == row[cell["column"]]
        known.add((cell["group"], cell["over"], cell["column"]))
    expected = {
        (row["group"], None, name)
        for row in rows.values()
        for name, value in row.items()
        if value
        and not name.startswith("env_steps_max")
        and name not in ("environment", "measure", "group", "level_1", "level_2", *_TEXTS)
    }
    expected |= {(row["group"], row["over"], name) for row in pairs.values() for name in ("probability", "low", "high")}
    assert expected <= known, "the page lacks numbers of the CSV"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (500, False), (500, True), (390, True)])
def test_it_loads_nothing_says_nothing_and_fits(out: Path, tab: browser.Page, width: int, dark: bool) -> None:
    tab.open(out / "index.html", width, dark)
    assert tab.requests == [(out / "index.html").resolve().as_uri()]
    assert tab.messages == []
    assert tab.value("document.documentElement.scrollWidth") <= width
    assert json.loads(tab.value(_TOO_WIDE)) == []
    background = tab.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 3 * 128) == dark
    assert tab.value('document.querySelectorAll(".chart svg path").length') > 10
    assert float(tab.value(_SMALLEST_TEXT)) >= _READABLE_PX
    curve = tab.value('getComputedStyle(document.querySelector(".chart svg [clip-path][style*=series-1]")).stroke')
    assert curve.startswith("rgb(")


_EVALUATED = """
JSON.stringify([...document.querySelectorAll("tr[data-evaluation] data")].map(cell => {
  return {...cell.closest("tr").dataset, column: cell.dataset.column, value: cell.value, shown: cell.innerText};
}))
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_evaluations_and_states_are_those_of_the_csv(out: Path, tab: browser.Page, width: int) -> None:
    tab.open(out / "index.html", width)
    with (out / "evaluations.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["run"], row["opponent"], row["side"]): row for row in csv.DictReader(file)}
    cells = json.loads(tab.value(_EVALUATED))
    # Per run: of its team a return with its interval and a count; of each of three pairs three shares more.
    assert len(cells) == 2 * (4 + 3 * 11)
    for cell in cells:
        assert cell["value"] == rows[cell["run"], cell["opponent"], cell["side"]][cell["column"]]
        assert agrees(cell)
    states = json.loads(tab.value("JSON.stringify([...document.querySelectorAll('td.state b')].map(b => b.innerText))"))
    with (out / "runs.csv").open(encoding="utf-8", newline="") as file:
        assert states == [row["state"] for row in csv.DictReader(file)]
    heading = "document.querySelector('.stuck').getBoundingClientRect().right"
    assert tab.value(heading) <= width
