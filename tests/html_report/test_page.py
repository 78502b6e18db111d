"""The page: its parts, its edges, and that it is whole without a network."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from marlflow.base.errors import ConfigInvalid
from marlflow.html_report.groups import Grouping
from marlflow.html_report.report import _FILES, PAGE, write_report
from marlflow.runs.run_state import LOST, write_state
from tests.html_report.written import config, evaluated, policy, report, write_run, write_seeds
from tests.league.saved import write_league

_VOID = {"meta", "link", "br", "img", "wbr"}


class Reader(HTMLParser):
    """Collects elements and texts, and holds that every element is closed where it should be."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._is_broken = False
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._is_broken = tag == "wbr"
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        # What may be broken is one word.
        self.texts.append(self.texts.pop() + data if self._is_broken else data)
        self._is_broken = False

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def attributes(self, name: str) -> list[str]:
        return [value for _, found in self.elements if (value := found.get(name)) is not None]


def read(tmp_path: Path, *folders: Path) -> Reader:
    write_report(list(folders), tmp_path / "out")
    return Reader((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))


def test_a_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    page = read(tmp_path, write_seeds(tmp_path / "runs", [[1.0, 2.0], [2.0, 4.0]]))
    assert not {tag for tag, _ in page.elements} & {"script", "iframe", "object"}
    addresses = [address for name in ("src", "href", "xlink:href", "data") for address in page.attributes(name)]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert not any("url(http" in style or "@import" in style for style in [*page.attributes("style"), *page.texts])
    ids = Counter(page.attributes("id"))
    assert max(ids.values()) == 1
    targets = {address[1:] for address in addresses if address.startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]*)\)", " ".join(page.attributes("clip-path"))))
    assert targets <= set(ids)


def test_the_same_runs_give_the_same_files(tmp_path: Path) -> None:
    runs = write_seeds(tmp_path / "runs", [[1.0, 2.0], [2.0, 4.0]])
    contents = []
    for name in ("first", "second"):
        written = write_report([runs], tmp_path / name)
        contents.append([path.read_bytes() for path in written.files])
    assert contents[0] == contents[1]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\"quoted\" & 'more'", "{{ 7 * 7 }}", "</title><b>"])
def test_names_are_text_wherever_they_are(tmp_path: Path, name: str) -> None:
    reports = [report(1000, {name: policy(1.0, 1000)}, stages={f"{name}/Learn": {"busy_s": 1.0}}, faults={name: 2})]
    a = write_run(tmp_path / "a", reports, config(name=name, queue=name), plan=f"flowchart LR\n{name}\n")
    b = write_run(tmp_path / "b", reports, config(name=name, queue="other"))
    page = read(tmp_path, a, b)
    assert "script" not in {tag for tag, _ in page.elements}
    assert page.text.count(" ".join(name.split())) > 10


def test_one_run_has_numbers_and_no_intervals(tmp_path: Path) -> None:
    page = read(tmp_path, write_run(tmp_path / "run", evaluated([1.0, 2.5]), config(7)))
    assert "1 run in 1 group" in page.text
    assert "one run for each group, so there are no intervals" in page.text
    assert "final_iqm" in page.attributes("data-column")
    assert "final_low" not in page.attributes("data-column")
    assert "Probability" not in page.text


def test_a_run_without_returns_has_a_page(tmp_path: Path) -> None:
    page = read(tmp_path, write_run(tmp_path / "run", [report(100, {"prey": policy()})], config()))
    assert "No run has a return yet" in page.text
    assert (tmp_path / "out" / "table.csv").read_text(encoding="utf-8").strip() == ""


def test_a_report_with_nothing_but_env_steps_has_a_page(tmp_path: Path) -> None:
    page = read(tmp_path, write_run(tmp_path / "run", [{"env_steps": 5}], None, plan=""))
    assert "environment not recorded" in page.text


def test_evaluations_of_fewer_episodes_than_asked_for_are_said(tmp_path: Path) -> None:
    for seed, counts in enumerate(((20, 20), (20, 7), (3, None))):
        reports = evaluated([1.0, 2.0])
        for of, count in zip(reports, counts, strict=True):
            of["policies"]["prey"] |= {"eval_episodes": count, "eval_episodes_asked": None if count is None else 20}
        write_run(tmp_path / "runs" / str(seed), reports, config(seed))
    page = read(tmp_path, tmp_path / "runs")
    # The last evaluation of the third run came before its last report.
    assert "in the last evaluation of 2 runs, as few as 3 of 20 episodes count." in page.text


def test_what_limits_the_comparison_is_said(tmp_path: Path) -> None:
    write_seeds(tmp_path / "runs", [[1.0, 2.0, 3.0], [2.0]])
    write_run(tmp_path / "runs" / "again", evaluated([1.0, 2.0, 3.0]), config(0))
    (tmp_path / "runs" / "empty" / "checkpoints").mkdir(parents=True)
    assert "continued from checkpoints of others" not in read(tmp_path, tmp_path / "runs").text
    (tmp_path / "runs" / "population.jsonl").write_text("", encoding="utf-8")
    page = read(tmp_path, tmp_path / "runs")
    assert "1 run does not say whether it has ended. See the table of runs." in page.text
    assert "between 1,000 and 3,000 env steps" in page.text
    assert "tag has several runs of seed 0" in page.text
    assert "Runs in runs continued from checkpoints of others (tune scheduler=pbt)" in page.text
    assert "empty has no metrics.jsonl" in page.text
    assert "Intervals of so few runs are their least and greatest values" in page.text
    assert "3 runs: mean and range" in page.text


@pytest.mark.parametrize(
    ("state", "reason", "shown", "note"),
    [
        ("finished", "stop.env_steps=3000", "finished stop.env_steps=3000", None),
        ("finished", "stop.time_s=5", "finished stop.time_s=5", None),
        ("interrupted", "terminated", "interrupted terminated", "1 run was interrupted"),
        ("failed", "the <b>pole", "failed the <b>pole", "1 run failed"),
        ("running", "", f"interrupted {LOST}", "1 run was interrupted"),
    ],
)
def test_how_a_run_ended_is_shown(tmp_path: Path, state: Any, reason: str, shown: str, note: str | None) -> None:
    run = write_run(tmp_path / "run", evaluated([1.0, 2.0, 3.0]), config())
    write_state(run, state, reason)
    page = read(tmp_path, run)
    assert f"run {shown} tag 0 3,000" in page.text
    assert ("See the table of runs" in page.text) == (note is not None)
    assert note is None or note in page.text
    (row,) = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["runs"]
    assert (row["state"], row["reason"]) == (shown.partition(" ")[0], LOST if state == "running" else reason)


def test_a_run_that_has_all_its_env_steps_is_finished_and_one_with_less_ended_before(tmp_path: Path) -> None:
    """Also without a written state, as of earlier versions."""
    page = read(tmp_path, write_run(tmp_path / "whole", evaluated([1.0, 2.0, 3.0]), config()))
    assert "whole finished stop.env_steps=3000" in page.text
    run = write_run(tmp_path / "early", evaluated([1.0]), config())
    write_state(run, "finished", "callbacks.early: good enough")
    assert "1 run ended before stop.env_steps. See the table of runs." in read(tmp_path, run).text


def test_a_single_point_is_a_dot_for_one_run_and_for_several(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", evaluated([1.0]), config())
    several = write_seeds(tmp_path / "several", [[1.0], [2.0], [4.0]])
    dots = []
    for name, folder in (("a", one), ("b", several)):
        write_report([folder], tmp_path / name)
        dots.append(re.findall(r"<use [^>]*", (tmp_path / name / "index.html").read_text(encoding="utf-8")))
    styled = [[use for use in of if "--series-0" in use] for of in dots]
    # Of each run, of their mean, and the band, over env steps and over time.
    assert [len(of) for of in styled] == [2, 10]


def test_groups_of_other_lengths_or_of_one_run_are_said(tmp_path: Path) -> None:
    short = write_seeds(tmp_path / "short", [[1.0]], queue="short")
    long = write_seeds(tmp_path / "long", [[1.0, 2.0, 3.0]], queue="long")
    page = read(tmp_path, short, long)
    assert "The groups of cartpole_team had between 1,000 and 3,000 env steps" in page.text
    assert "2 groups of cartpole_team have a single run" in page.text


def test_a_final_value_of_long_before_the_end_is_said(tmp_path: Path) -> None:
    reports = [*evaluated([1.0]), *(report(at, {"prey": policy(None, trained=2.0)}) for at in (2000, 20_000))]
    old = write_run(tmp_path / "old", reports, config())
    write_state(old, "interrupted", "SIGINT")
    whole = write_run(tmp_path / "whole", evaluated([1.0, 2.0]), config(queue="whole"))
    page = read(tmp_path, old, whole)
    assert page.text.count("last evaluated long before the end") == 1
    said = "1 run was last evaluated long before the end, at 1,000 of 20,000 env steps. Final values are of that time."
    assert said in page.text


def test_stages_faults_and_plans_are_shown(tmp_path: Path) -> None:
    reports = [report(1000, {"prey": policy(1.0, 1000)}, faults={"env_errors": 3, "workers_lost": 0})]
    page = read(tmp_path, write_run(tmp_path / "run", reports, config()))
    # Of ten seconds, 2.5 were busy and 5 blocked.
    assert "Collect 25 % 0 % 50 %" in page.text
    assert "queue 0 %" not in page.text
    assert "env_errors 3" in page.text
    assert "workers_lost" not in page.text
    assert "prey: ppo queue(4) Learn(epochs=4) at learner prey" in page.text
    assert "ByPolicy → prey" in page.text


def test_configurations_that_differ_are_compared(tmp_path: Path) -> None:
    a = write_seeds(tmp_path / "a", [[1.0]], queue=None)
    b = write_seeds(tmp_path / "b", [[2.0]], queue="x" * 300)
    page = read(tmp_path, a, b)
    assert "key tag (a/0) tag (b/0) queue null" in page.text
    assert "x" * 100 in page.text


def test_standings_of_a_league_are_shown_and_a_damaged_one_is_noted(tmp_path: Path) -> None:
    reports = [report(3000, {"main": policy(1.0, 3000)}, league={"members": 4})]
    run = write_run(tmp_path / "run", reports, config())
    write_league(run)
    page = read(tmp_path, run)
    assert "Leagues" in page.text
    assert "main@2" in page.text
    for checkpoint in (run / "checkpoints").glob("*/driver*"):
        checkpoint.write_bytes(b"")
    page = read(tmp_path, run)
    assert "the standings of" in page.text
    assert "main@2" not in page.text


def test_short_videos_are_in_the_page_and_long_ones_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "a run", evaluated([1.0]), config())
    (run / "videos").mkdir()
    (run / "videos" / "short.webm").write_bytes(b"webm")
    (run / "long #1.mp4").write_bytes(b"mp4" * 1000)
    (run / "some.GIF").write_bytes(b"gif")
    (run / "some.webp").write_bytes(b"webp")
    monkeypatch.setattr("marlflow.html_report.extras._EMBEDDED_BYTES", 100)
    page = read(tmp_path, run)
    sources = [found["src"] for tag, found in page.elements if tag in ("video", "img")]
    assert sources == [
        "../a%20run/long%20%231.mp4",
        "data:image/gif;base64,Z2lm",
        "data:image/webp;base64,d2VicA==",
        "data:video/webm;base64,d2VibQ==",
    ]


def test_a_hundred_runs_fit_on_a_page(tmp_path: Path) -> None:
    for number in range(100):
        write_run(tmp_path / "runs" / str(number), evaluated([1.0 * number, 2.0 * number]), config(x=number))
    page = read(tmp_path, tmp_path / "runs")
    assert "100 runs in 100 groups" in page.text
    assert "all other groups" in page.text
    assert (tmp_path / "out" / "index.html").stat().st_size < 1_500_000


def test_groups_of_one_name_in_two_environments_are_told_apart(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", evaluated([1.0]), config())
    b = write_run(tmp_path / "b", evaluated([1.0]), config(env={"_target_": "other.env"}))
    page = read(tmp_path, a, b)
    assert "2 environments" in page.text
    assert "tag, cartpole_team" in page.text
    assert "tag, other" in page.text


def test_a_report_replaces_no_tables_of_another_program(tmp_path: Path) -> None:
    runs, out = write_seeds(tmp_path / "runs", [[1.0]]), tmp_path / "out"
    out.mkdir()
    (out / "table.csv").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigInvalid, match=r"has table\.csv, and no report of marlflow; choose another directory"):
        write_report([runs], out)
    assert (out / "table.csv").read_text(encoding="utf-8") == "mine"


def test_a_report_replaces_reports_and_nothing_else(tmp_path: Path) -> None:
    runs, out = write_seeds(tmp_path / "runs", [[1.0]]), tmp_path / "out"
    out.mkdir()
    written = write_report([runs], out)
    assert {path.name for path in written.files} == {PAGE, *_FILES}
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    write_report([runs], out)
    assert (out / "notes.txt").read_text(encoding="utf-8") == "mine"
    (out / "index.html").write_text("<html>mine</html>", encoding="utf-8")
    with pytest.raises(ConfigInvalid, match="is not a report of marlflow; choose another directory"):
        write_report([runs], out)
    assert (out / "index.html").read_text(encoding="utf-8") == "<html>mine</html>"
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigInvalid, match="cannot be written to"):
        write_report([runs], tmp_path / "file")


_CHILD = """
import sys
for name in ("ray", "hydra", "omegaconf", "torch", "pettingzoo"):
    sys.modules[name] = None
from pathlib import Path
from marlflow.html_report.groups import Grouping
from marlflow.html_report.report import write_report
from marlflow.runs.run_state import LOST, write_state
write_report([Path(sys.argv[1])], Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_report_needs_neither_ray_nor_hydra_nor_torch(tmp_path: Path) -> None:
    runs = write_seeds(tmp_path / "runs", [[1.0]])
    subprocess.run([sys.executable, "-c", _CHILD, str(runs), str(tmp_path / "out")], check=True, timeout=120)
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize(("groups", "bands"), [(7, 14), (8, 0)])
def test_bands_are_drawn_while_they_can_be_told_apart(tmp_path: Path, groups: int, bands: int) -> None:
    folders = [write_seeds(tmp_path / str(n), [[1.0, n], [2.0, 1.0 * n]], x=n) for n in range(groups)]
    page = read(tmp_path, *folders)
    assert sum("fill-opacity" in style for style in page.attributes("style")) == bands
    assert ("of so many groups they are not drawn" in page.text) == (not bands)


def tinted(page: Reader) -> list[str]:
    return [style for style in page.attributes("style") if "--tint" in style]


@pytest.mark.parametrize(
    ("runs", "nothing", "chance"),
    [(1, False, ""), (2, True, "33 %"), (3, True, "10 %"), (4, False, ""), (5, False, "")],
)
def test_few_seeds_are_said_to_distinguish_nothing(tmp_path: Path, runs: int, nothing: bool, chance: str) -> None:
    a = write_seeds(tmp_path / "a", [[1.0 + seed] for seed in range(runs)], x="a")
    b = write_seeds(tmp_path / "b", [[9.0 + seed] for seed in range(runs)], x="b")
    page = read(tmp_path, a, b)
    said = f"With {runs} runs in a group, nothing in cartpole_team can be distinguished"
    assert (said in page.text) == nothing
    assert f"in {chance} of comparisons" in page.text or not nothing
    # One group is wholly better, which means something from four runs on.
    assert len(tinted(page)) == (2 if runs >= 4 else 0)
    assert ("low" in page.attributes("data-column")) == (runs >= 4)


def test_colors_are_only_where_the_interval_excludes_chance(tmp_path: Path) -> None:
    a = write_seeds(tmp_path / "a", [[float(seed)] for seed in range(5)], x="a")
    b = write_seeds(tmp_path / "b", [[seed + 0.7] for seed in range(5)], x="b")
    c = write_seeds(tmp_path / "c", [[seed + 50.0] for seed in range(5)], x="c")
    page = read(tmp_path, a, b, c)
    assert len(tinted(page)) == 4, "c over a and b, and these over c"
    with (tmp_path / "out" / "improvement.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(not float(row["low"]) <= 0.5 <= float(row["high"]) for row in rows) == 4


def test_groups_with_some_small_ones_are_not_all_alike(tmp_path: Path) -> None:
    sizes = {"a": 2, "b": 3, "c": 6}
    page = read(tmp_path, *(write_seeds(tmp_path / x, [[1.0 + n] for n in range(of)], x=x) for x, of in sizes.items()))
    assert "With 2 and 3 runs in a group, not every pair of groups in cartpole_team can be distinguished" in page.text
    assert "2 runs: mean and range; 3 runs: mean and range" in page.text
    # In one table, each interval says what it is.
    assert page.texts.count("mean [range]") == 4
    assert page.texts.count("IQM [95 %]") == 2


@pytest.mark.parametrize(
    ("modes", "shown"),
    [
        (("greedy", "greedy"), "return per agent and episode, evaluation, greedy actions"),
        (("sampled", "sampled"), "return per agent and episode, evaluation, sampled actions"),
        (("greedy", "sampled"), "evaluation (greedy: 'x=a'; sampled: 'x=b')"),
        ((None, None), "return per agent and episode, evaluation, greedy actions"),
    ],
)
def test_each_figure_says_how_policies_acted(tmp_path: Path, modes: tuple[str | None, ...], shown: str) -> None:
    """Runs of earlier versions did not report it, but their configuration says it."""
    for x, mode, rate in zip("ab", modes, (1, 2), strict=True):
        reports = [report(1000, {"prey": {**policy(1.0, 1000), "eval_mode": mode}})]
        write_run(tmp_path / "runs" / x, reports, config(x=x, rate=rate, evaluation={"mode": "greedy"}))
        write_run(tmp_path / "runs" / f"{x}2", reports, config(x=x, rate=3 + rate, evaluation={"mode": "greedy"}))
    write_report([tmp_path / "runs"], tmp_path / "out", grouping=Grouping(("x",)))
    page = Reader((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    figures = [label for label in page.attributes("aria-label") if " over " in label]
    assert len(figures) == 2
    assert page.text.count(shown) == 3, "at both figures and the table"
    svg = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    on_axis = shown.partition(", ")[2] if shown.startswith("return") else "evaluation, groups act differently"
    assert svg.count(f">{on_axis}</text>") == svg.count(">return per agent and episode</text>") == 2
    assert ("acted in another way" in page.text) == (modes[0] != modes[1])


def test_returns_of_training_are_called_that(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [report(1000, {"prey": policy(trained=1.0)})], config())
    page = read(tmp_path, run)
    assert page.text.count("return per agent and episode, training, exploration included") == 3
    with (tmp_path / "out" / "table.csv").open(encoding="utf-8", newline="") as file:
        assert [row["mode"] for row in csv.DictReader(file)] == ["with exploration"]


def test_what_group_by_and_merge_joined_is_said(tmp_path: Path) -> None:
    for cycles, x in ((5, 1), (6, 2)):
        write_seeds(tmp_path / "runs" / str(x), [[1.0]], env={"max_cycles": cycles}, x=x, queue="q")
    grouping = Grouping(("queue",), ("max_cycles",))
    written = write_report([tmp_path / "runs"], tmp_path / "out", grouping=grouping)
    page = Reader((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    assert (written.runs, written.groups) == (2, 1)
    assert "Runs with the same queue are one group" in page.text
    assert "The runs of queue=q differ in env.max_cycles, x: they are one group because of group_by" in page.text
    assert "cartpole_team has environments that differ in env.max_cycles, because of merge" in page.text
    assert "x 1 or 2" in page.text


def test_the_json_has_the_rows_of_the_csv(tmp_path: Path) -> None:
    folders = [write_seeds(tmp_path / str(n), [[1.0 * n], [2.0], [3.0], [5.0]], x=n) for n in range(2)]
    write_report(folders, tmp_path / "out")
    data = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert set(data) == {"table", "improvement", "settings", "runs", "evaluations"}
    for name, rows in data.items():
        with (tmp_path / "out" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            as_texts = [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows]
            assert list(csv.DictReader(file)) == as_texts
    assert len(data["settings"]) == len(data["improvement"]) == 2
