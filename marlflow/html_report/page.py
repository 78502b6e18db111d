"""The page: everything that the template shows, and the rendering of it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from marlflow.base.return_units import RETURN, Units
from marlflow.html_report import texts
from marlflow.html_report.charts import MOST_COLORED, MOST_WITH_BANDS, Look, by_setting, curves, look
from marlflow.html_report.differences import KeyDifference, differences
from marlflow.html_report.evaluations import EvaluatedPair
from marlflow.html_report.extras import LeagueTable, RunVideo
from marlflow.html_report.files import columns, decimals
from marlflow.html_report.groups import LEFT_OUT, Grouping, RunGroup, Task, environment
from marlflow.html_report.results import MOST_DRAWN, GroupComparison, ResultRow, SweptSetting, swept_settings
from marlflow.html_report.runs import ReportedRun, number, section
from marlflow.html_report.stages import faults, plan_boxes, speed, stage_shares
from marlflow.html_report.statistics import RESAMPLES, BootstrapInterval, can_differ, chance_of_order, summary_names
from marlflow.observe.population import POPULATION

GENERATOR = "marlflow report"
"""The generator named in the page, by which a later report knows that it may replace the page."""

_MOST_KEYS = 5
# Reports are made after whole rounds, so equal runs may end some env steps apart.
_UNEQUAL = 1.05


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """A figure of a measure: its SVG, its x-axis (`over`), and a legend if the colors do not show groups."""

    comparison: GroupComparison
    over: str
    svg: str
    legend: tuple[tuple[Look, str], ...] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True)
class TaskView:
    """An environment as the page shows it, with its figures; `looks` has the color and line of each group."""

    task: Task
    comparisons: tuple[GroupComparison, ...]
    looks: Mapping[str, Look]
    curves: tuple[ReportFigure, ...]
    settings: tuple[ReportFigure, ...]

    @property
    def has_bands(self) -> bool:
        """Whether the curves have bands."""
        return len(self.task.groups) <= MOST_WITH_BANDS

    @property
    def has_others(self) -> bool:
        """Whether some groups share one look."""
        return len(self.task.groups) > MOST_COLORED


@dataclass(frozen=True, slots=True)
class PageContent:
    """The contents of a page."""

    views: tuple[TaskView, ...]
    notes: tuple[str, ...]
    leagues: tuple[LeagueTable, ...]
    videos: tuple[RunVideo, ...]
    evaluations: tuple[EvaluatedPair, ...]
    version: str
    grouping: Grouping
    units: Units

    @property
    def groups(self) -> list[RunGroup]:
        """All groups."""
        return [group for view in self.views for group in view.task.groups]

    @property
    def runs(self) -> list[ReportedRun]:
        """All runs."""
        return [run for group in self.groups for run in group.runs]

    def title(self, group: RunGroup) -> str:
        """Return a group's name, with its environment's name if a group of another environment has the same."""
        if sum(other.name == group.name for other in self.groups) < 2:
            return group.name
        return next(f"{group.name}, {view.task.name}" for view in self.views if group in view.task.groups)

    @property
    def has_repeats(self) -> bool:
        """Whether a group has several runs, and so intervals."""
        return any(len(group.runs) > 1 for group in self.groups)

    @property
    def has_default_levels(self) -> bool:
        """Whether levels were chosen from the returns of the runs."""
        rows = (row for view in self.views for comparison in view.comparisons for row in comparison.rows)
        return any(reached.share is not None for row in rows for reached in row.reached)


def view_of(task: Task, comparisons: Sequence[GroupComparison], number: int) -> TaskView:
    """Return an environment with its curves; `number` is its place on the page."""
    looks = {group.name: look(place) for place, group in enumerate(_by_return(task, comparisons))}
    looks = {name: one if place < MOST_COLORED else look(None) for place, (name, one) in enumerate(looks.items())}
    drawn, swept = list[ReportFigure](), list[ReportFigure]()
    for place, comparison in enumerate(comparisons):
        name = f"curve-{number}-{place}"
        drawn.append(ReportFigure(comparison, "env steps", curves(comparison, looks, name)))
        if any(one.times_s.any() for row in comparison.rows for one in row.series):
            drawn.append(ReportFigure(comparison, "elapsed time", curves(comparison, looks, f"{name}-t", "times_s")))
        for at, setting in enumerate(swept_settings(comparison)[:MOST_DRAWN]):
            swept.append(_setting_figure(comparison, setting, f"{name}-s{at}"))
    return TaskView(task, tuple(comparisons), looks, tuple(drawn), tuple(swept))


def _setting_figure(comparison: GroupComparison, swept: SweptSetting, name: str) -> ReportFigure:
    legend = tuple((look(place), line.title) for place, line in enumerate(swept.lines) if line.title)
    captions = {"log": "Logarithmic axis.", "symlog": "Logarithmic axis, except 0 at its left."}
    parts = [
        captions.get(swept.scale, ""),
        "" if swept.connected else "Groups differ in other settings too, so that no line connects them.",
    ]
    return ReportFigure(
        comparison, swept.name, by_setting(swept, name, comparison.axis), legend, " ".join(filter(None, parts))
    )


def _by_return(task: Task, comparisons: Sequence[GroupComparison]) -> list[RunGroup]:
    """Return groups as given, or if there are more groups than colors, the best ones first."""
    groups = list(task.groups)
    if len(groups) > MOST_COLORED and comparisons:
        final = {row.group.name: row.final.value for row in comparisons[0].rows}
        groups.sort(key=lambda group: -final.get(group.name, float("-inf")))
    return groups


def render(content: PageContent) -> str:
    """Return the page as HTML."""
    functions: dict[str, Any] = {
        "columns": columns,
        "decimals": decimals,
        "faults": faults,
        "is_clear": is_clear,
        "plan_boxes": plan_boxes,
        "settings": settings,
        "speed": speed,
        "stage_shares": stage_shares,
        "updates": updates,
        "whisker": whisker,
    }
    names = list(dict.fromkeys(str(group.config.get("name") or group.name) for group in content.groups))
    return (
        templates()
        .get_template("index.html")
        .render(
            content=content,
            title=" vs. ".join(names) if len(names) <= 3 else texts.count(len(content.runs), "run"),
            generator=GENERATOR,
            notes=notes_of(content),
            differences=group_differences(content.groups),
            resamples=RESAMPLES,
            unit=RETURN[content.units],
            most_settings=MOST_DRAWN,
            **functions,
        )
    )


@cache
def templates() -> Environment:
    """Return the templates, which are compiled once: that takes as long as all else of a small report."""
    folder = files("marlflow.html_report") / "templates"
    templates = Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "amount": texts.amount,
        "breakable": breakable,
        "duration": texts.duration,
        "percent": texts.percent,
        "plural": texts.count,
        "seeds": texts.seeds,
    }
    return templates


def breakable(name: str) -> Markup:
    """Return a name as HTML, which may be broken after its equals signs, underscores, dots and slashes."""
    return Markup("<wbr>").join(re.split(r"(?<=[=_./])", name))


def settings(group: RunGroup) -> str:
    """Return a group's configuration as YAML, without the seed."""
    known = {key: value for key, value in group.config.items() if key != "seed"}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=100) if known else ""


def updates(run: ReportedRun) -> int:
    """Return the optimizer steps of all learners of a run."""
    return int(sum(number(run.last, "learners", name, "updates") or 0 for name in section(run.last, "learners")))


def whisker(one: BootstrapInterval, rows: Sequence[ResultRow], kind: str) -> tuple[float, float, float]:
    """Return an interval's ends and middle in percent of the range of all rows; `kind` is `final` or `best`."""
    several: list[BootstrapInterval] = [getattr(row, kind) for row in rows]
    ends = [end for other in several for end in (other.low, other.value, other.high) if end is not None]
    least, width = min(ends), max(ends) - min(ends)
    low = one.value if one.low is None else one.low
    high = one.value if one.high is None else one.high
    places = [50.0 if width <= 0 else 100 * (end - least) / width for end in (low, high, one.value)]
    return places[0], places[1], places[2]


def is_clear(better: BootstrapInterval) -> bool:
    """Return whether the interval of a probability of improvement excludes chance."""
    return better.low is not None and better.high is not None and not better.low <= 0.5 <= better.high


def group_differences(groups: Sequence[RunGroup]) -> list[KeyDifference]:
    """Return where the configurations of groups, or of runs in one, differ."""
    return differences([[run.config for run in group.runs] for group in groups], LEFT_OUT)


def lengths(content: PageContent) -> Iterator[str]:
    """Yield a sentence on each environment whose groups had different numbers of env steps, or have no seeds."""
    for view in content.views:
        groups = view.task.groups
        if len(groups) < 2:
            continue
        steps = [max(run.env_steps for run in group.runs) for group in groups]
        if max(steps) > _UNEQUAL * min(steps):
            yield (
                f"The groups of {view.task.name} had between {min(steps):,} and {max(steps):,} env steps. Their final "
                "returns are not after equal training; the curves compare them at equal env steps."
            )
        if single := sum(len(group.runs) == 1 for group in groups):
            yield (
                f"{texts.count(single, 'group')} of {view.task.name} {'has' if single == 1 else 'have'} a single run: "
                "a difference may come from the seed alone. Five seeds each show more."
            )


def last_evaluated(content: PageContent) -> Iterator[str]:
    """Yield a sentence on each group with runs that have ended long after their last evaluation."""
    for comparison in (one for view in content.views for one in view.comparisons if one.measure.is_evaluated):
        for row in comparison.rows:
            ended = [(int(one.env_steps[-1]), run) for one, run in zip(row.series, row.runs, strict=True)]
            old = [(at, run.env_steps) for at, run in ended if run.state.name != "running"]
            if old := sorted((at, end) for at, end in old if end > _UNEQUAL * at):
                at, end = old[0]
                which = "1 run was" if len(old) == 1 else f"{len(old)} runs were"
                earliest = "" if len(old) == 1 else ", the earliest of them"
                of = f"{content.title(row.group)}, {comparison.measure.title}"
                yield (
                    f"{of}: {which} last evaluated long before the end, at {at:,} of {end:,} env steps{earliest}. "
                    "Final values are of that time."
                )


def cut_evaluations(groups: Mapping[str, RunGroup]) -> Iterator[str]:
    """Yield a sentence on each group with runs whose last evaluation has fewer episodes than were asked for."""
    for name, group in groups.items():
        played = [one for run in group.runs if (one := _last_evaluation(run)) is not None]
        if short := sorted((count, asked) for count, asked in played if count < asked):
            count, asked = short[0]
            which = "1 run" if len(short) == 1 else f"{len(short)} runs"
            yield f"{name}: in the last evaluation of {which}, as few as {count:,} of {asked:,} episodes count."


def _last_evaluation(run: ReportedRun) -> tuple[int, int] | None:
    """Return how many episodes of a run's last evaluation count, for the policy with the fewest, of how many."""
    for report in reversed(run.reports):
        of_policies = section(report, "policies").values()
        counts = [(number(one, "eval_episodes"), number(one, "eval_episodes_asked")) for one in of_policies]
        if known := [(int(count), int(asked)) for count, asked in counts if count is not None and asked is not None]:
            return min(known)
    return None


def _ends(runs: Iterable[ReportedRun]) -> Iterator[str]:
    """Yield a sentence on runs that did not end as configured, by their states."""
    by_state: dict[str, list[ReportedRun]] = {}
    for run in runs:
        by_state.setdefault(run.state.name, []).append(run)
    short = [run for run in by_state.get("finished", []) if (run.stop_env_steps or 0) > run.env_steps]
    parts = [
        texts.count(len(by_state[state]), one, several)
        for state, one, several in (
            ("running", "run is still running", "runs are still running"),
            ("interrupted", "run was interrupted", "runs were interrupted"),
            ("failed", "run failed", "runs failed"),
            ("unknown", "run does not say whether it has ended", "runs do not say whether they have ended"),
        )
        if state in by_state
    ]
    if short:
        parts.append(texts.count(len(short), "run ended before stop.env_steps", "runs ended before stop.env_steps"))
    if parts:
        yield f"{'; '.join(parts)}. See the table of runs."


def notes_of(content: PageContent) -> list[str]:
    """Return all sentences on what was left out, and on limits of the comparison."""
    titled = {content.title(group): group for group in content.groups}
    return [
        *content.notes,
        *notes_on(titled),
        *lengths(content),
        *last_evaluated(content),
        *cut_evaluations(titled),
        *grouped(content),
        *too_few(content),
    ]


def notes_on(groups: Mapping[str, RunGroup]) -> Iterator[str]:
    """Yield sentences on limits of the comparison of groups, which are named by title."""
    yield from _ends(run for group in groups.values() for run in group.runs)
    folders = dict.fromkeys(run.folder.parent for group in groups.values() for run in group.runs)
    for folder in folders:
        if (folder / POPULATION).is_file():
            yield (
                f"Runs in {folder.name} continued from checkpoints of others (tune scheduler=pbt): they have not "
                "learned with their last settings all along, and are not independent of each other."
            )
    for name, group in groups.items():
        steps = {run.env_steps for run in group.runs}
        if max(steps) > _UNEQUAL * min(steps):
            yield (
                f"The runs of {name} have between {min(steps):,} and {max(steps):,} env steps. Their curve ends "
                "with the shortest run, and final returns are taken at each run's own end."
            )
        if repeated := [seed for seed, times in Counter(group.seeds).items() if times > 1]:
            yield (
                f"{name} has several runs of seed {texts.seeds(repeated)}. They are counted as independent, which "
                "makes intervals too narrow if they are equal."
            )
        if not group.config:
            yield f"The configuration of {name} was not recorded, so it is a group of its own."


def grouped(content: PageContent) -> Iterator[str]:
    """Yield sentences on the runs that `group_by` and `merge` joined, and on policies that acted in different ways."""
    for group in content.groups:
        keys = [one.key for one in differences([[run.config] for run in group.runs], LEFT_OUT)]
        if keys:
            listed = ", ".join(keys[:_MOST_KEYS]) + (", ..." if len(keys) > _MOST_KEYS else "")
            yield f"The runs of {content.title(group)} differ in {listed}: they are one group because of group_by."
    for view in content.views:
        keys = [one.key for one in differences([[{"env": environment(run.config)}] for run in view.task.runs])]
        if keys:
            yield f"{view.task.name} has environments that differ in {', '.join(keys)}, because of merge."
        if mixed := [one.measure.title for one in view.comparisons if len({row.mode for row in one.rows}) > 1]:
            yield (
                f"In {view.task.name}, {', '.join(mixed)}: policies acted in another way in some groups than in others."
            )


def too_few(content: PageContent) -> Iterator[str]:
    """Yield sentences on environments whose groups have too few runs to compare, and on the meaning of intervals."""
    for view in content.views:
        runs = sorted(len(group.runs) for group in view.task.groups if len(group.runs) > 1)
        pairs = list(itertools.combinations(runs, 2))
        unclear = [pair for pair in pairs if not can_differ(*pair)]
        if unclear:
            which = "nothing" if len(unclear) == len(pairs) else "not every pair of groups"
            fewest = min(unclear)
            chance = texts.percent(chance_of_order(*fewest))
            yield (
                f"With {' and '.join(map(str, sorted(set(fewest))))} runs in a group, {which} in {view.task.name} can "
                f"be distinguished: even of two equal groups, all runs of one are better than all of the other in "
                f"{chance} of comparisons. Four runs each are the fewest that could show a difference, five or more "
                "are better."
            )
    counts = {len(group.runs) for group in content.groups}
    if few := sorted(counts & {2, 3, 4}):
        means = [f"{texts.count(runs, 'run')}: {summary_names(runs).statistic} and range" for runs in few]
        yield (
            "Intervals of so few runs are their least and greatest values, not confidence intervals "
            f"({'; '.join(means)})."
        )
