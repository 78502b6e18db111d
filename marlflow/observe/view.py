"""The console on a terminal: a header, a table of policies, a table of stages, with log lines above them.

Columns and rows depend on the terminal's size: if it is too narrow, the least important columns are left out; columns
that name a row stay complete.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marlflow.observe import wording
from marlflow.observe.console import RunConsole
from marlflow.observe.rates import (
    StageShares,
    TableRow,
    progress,
    rollout_shares,
    stage_shares,
    table_rows,
    updates_per_s,
    with_last_evaluations,
)
from marlflow.observe.report import LearnerMetrics, PolicyMetrics, Report, RunInfo

NARROW_COLUMNS, WIDE_COLUMNS, SPREAD_COLUMNS, ALL_LOSS_TERMS_COLUMNS = 80, 110, 130, 150
_POLICY_STYLES = ("cyan", "magenta", "green", "blue", "yellow", "red")
_SHARE_STYLES = ("green", "bright_black", "yellow")
_SHARE_GLYPHS, _SHARE_GLYPHS_ASCII = "█░▒", "#.="
_BAR_COLUMNS = 24
_MOST_INFOS = 2
_EVALUATION_COLUMNS = len("at 100.0k")
_AGENTS_COLUMNS = 24
_LEFT_OUT = ("std", "length", "staleness", "per s", "episodes", "agents", "agent steps", "updates", "algorithm", "loss")
"""Columns of policies, in the order in which they are left out if the terminal is too narrow for all."""
_STAGES_LEFT_OUT = ("bar", "rows", "items", "waits for room", "waits for input", "busy")
# Header, faults, rollout workers, footer, two table heads, blanks, "more" lines, and space above for messages.
_ROWS_BESIDE_TABLES = 16
_FEWEST_ROWS = 3


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot of a run at `clock_s`; `rows` is the terminal's height, None for no limit."""

    info: RunInfo
    before: Report | None
    now: Report | None
    clock_s: float
    rows: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        until = f"  {self.info.runtime}, until {wording.stop_phrase(self.info.stop)}"
        yield _line(Text.assemble((self.info.name, "bold"), until))
        if self.now is None:
            yield _line(Text(f"{wording.duration(self.clock_s)}  waiting for the first report"))
        else:
            yield from self._report(self.now, options)
        yield _line(Text(f"folder: {self.info.run_dir}", style="bright_black"))

    def _report(self, now: Report, options: ConsoleOptions) -> Iterator[RenderableType]:
        rows = self.rows
        if rows is not None:
            # The heading of evaluations may take several lines of the terminal.
            rows -= max(0, _evaluation_heading(now, options.max_width).count("\n") - 1) + ("league" in now)
        listed = table_rows(self.info.policies, now)
        stages = {name: share for name, share in stage_shares(self.before, now).items() if share.percents[0]}
        policy_rows, stage_rows = _room(rows, len(listed), len(stages))
        yield _header(now, self.info.stop, self.clock_s)
        if faults := wording.faults_phrase(now["faults"]):
            yield _line(Text(f"faults: {faults}", style="yellow"))
        if shares := rollout_shares(self.before, now):
            yield _line(Text(f"rollout workers: {wording.shares_phrase(shares)}", style="bright_black"))
        if league := now.get("league"):
            yield _line(Text(wording.league_phrase(league), style="bright_black"))
        yield Text()
        yield _policies(listed[:policy_rows], self.before, now, options.max_width, _styles(listed))
        yield from _more(len(listed) - policy_rows, "policy", "policies")
        yield Text()
        if now["stages"]:
            # In plan order and by total time, so that rows stay in place between reports.
            busiest = sorted(stages, key=lambda name: -now["stages"][name]["busy_s"])[:stage_rows]
            shown = [name for name in stages if name in busiest]
            if shown:
                yield _stages({name: stages[name] for name in shown}, now, options, _styles(listed))
            yield from _more(len(now["stages"]) - len(shown), "stage that was less busy", "stages that were less busy")
            yield Text()


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _more(count: int, one: str, several: str) -> Iterator[Text]:
    if count > 0:
        yield Text(f"and {count} more {one if count == 1 else several}", style="bright_black")


def _room(rows: int | None, policies: int, stages: int) -> tuple[int, int]:
    """Divide the rows between the tables: neither gets more than half unless the other needs less."""
    if rows is None:
        return policies, stages
    free = max(rows - _ROWS_BESIDE_TABLES, 2 * _FEWEST_ROWS)
    policy_rows = min(policies, max(free - stages, free // 2))
    return policy_rows, min(stages, free - policy_rows)


def _header(now: Report, stop: Mapping[str, float], clock_s: float) -> Table:
    head = Table.grid(padding=(0, 2), expand=True)
    cells: list[RenderableType] = [
        wording.duration(clock_s),
        f"{wording.full_count(now['env_steps'])} env steps",
        f"{wording.speed(now['env_steps_per_s'])}/s",
    ]
    for _ in cells:
        head.add_column(no_wrap=True)
    ahead = progress(now, stop)
    head.add_column(ratio=1)
    if ahead is not None:
        head.add_column(no_wrap=True, justify="right")
        left = "" if ahead.left_s is None else f", {wording.duration(ahead.left_s)} left"
        cells += [
            ProgressBar(1.0, ahead.fraction, style="bright_black", complete_style="green", finished_style="green"),
            f"{int(100 * ahead.fraction)}%{left}",
        ]
    head.add_row(*cells)
    return head


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    heading: str
    cells: Sequence[str | Text]
    least: int
    is_text: bool = False

    @property
    def width(self) -> int:
        return max([self.least, *map(len, self.heading.split("\n")), *map(len, self.cells)])


def _fitted(columns: Sequence[_Column], width: int, gap: int, left_out: Sequence[str]) -> tuple[list[_Column], int]:
    """Return the columns that fit and the width that remains; columns are left out in the order of `left_out`."""
    kept = list(columns)
    for name in (*left_out, ""):
        left = width - sum(column.width for column in kept) - gap * (len(kept) - 1)
        if left >= 0:
            break
        kept = [column for column in kept if column.name != name]
    return kept, left


def _table(columns: Sequence[_Column], gap: int, styles: Sequence[str]) -> Table:
    """Draw a table whose first column has these styles by row."""
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold", collapse_padding=True)
    for column in columns:
        justify: Literal["left", "right"] = "left" if column.is_text else "right"
        table.add_column(Text(column.heading), no_wrap=True, justify=justify, min_width=column.least, vertical="bottom")
    for number, style in enumerate(styles):
        first, *others = [cell if isinstance(cell := column.cells[number], Text) else Text(cell) for column in columns]
        first.stylize(style)
        table.add_row(_line(first), *map(_line, others))
    return table


def _styles(rows: Sequence[TableRow]) -> dict[str, str]:
    # The same color in both tables and in every report; policies of one learner have its color.
    plans = dict.fromkeys(row.plan for row in rows)
    return {plan: _POLICY_STYLES[place % len(_POLICY_STYLES)] for place, plan in enumerate(plans)}


def _policies(
    rows: Sequence[TableRow], before: Report | None, now: Report, width: int, styles: Mapping[str, str]
) -> Table:
    gap = 2 if width >= WIDE_COLUMNS else 1
    columns = _policy_columns(rows, width, _evaluation_heading(now, width), updates_per_s(before, now))
    fitted, left = _fitted(columns, width, gap, _LEFT_OUT)
    if fitted[-1].name == "loss" and width >= ALL_LOSS_TERMS_COLUMNS:
        room = fitted[-1].width + left
        fitted[-1] = replace(fitted[-1], cells=[_loss_terms(row, room) for row in rows], is_text=True)
    return _table(fitted, gap, [styles[row.plan] for row in rows])


def _evaluation_heading(now: Report, width: int) -> str:
    """Return the heading of evaluation returns: the mode, and on wide terminals the opponents and env steps."""
    evaluated = [metrics for metrics in now["policies"].values() if metrics["eval_episodes"] is not None]
    modes = _evaluation_modes(now["policies"].values())
    steps = max((metrics["eval_env_steps"] or 0 for metrics in evaluated), default=None)
    at = [] if steps is None or width < WIDE_COLUMNS else [f"at {wording.short_count(steps)}"]
    opponents = {opponent for metrics in evaluated for opponent in metrics["eval_against"]}
    against = [line for text in wording.against(opponents) for line in wrap(text, _EVALUATION_COLUMNS)] if at else []
    # Where policies acted in several modes, each row has its own.
    return "\n".join(["eval", *(modes if len(modes) == 1 else ()), *against, *at])


def _evaluation_modes(metrics: Iterable[PolicyMetrics]) -> list[str]:
    return sorted({str(one["eval_mode"]) for one in metrics if one["eval_episodes"] is not None})


def _evaluated(metrics: Sequence[PolicyMetrics]) -> list[str]:
    returns = [wording.mean_return(one["eval_return_mean"]) for one in metrics]
    if len(_evaluation_modes(metrics)) < 2:
        return returns
    return [f"{one['eval_mode'] or ''} {value}".lstrip() for one, value in zip(metrics, returns, strict=True)]


def _policy_columns(
    rows: Sequence[TableRow], width: int, evaluation: str, rates: Mapping[str, float | None]
) -> list[_Column]:
    wide, roomy = width >= WIDE_COLUMNS, width >= SPREAD_COLUMNS
    count = wording.full_count if wide else wording.short_count
    metrics = [row.metrics for row in rows]

    def column(name: str, least: int, cells: Sequence[str], narrow: str = "") -> _Column:
        return _Column(name, name if wide or not narrow else narrow, cells, least)

    def learned(name: str, least: int, cell: Callable[[TableRow, LearnerMetrics], str], narrow: str = "") -> _Column:
        return column(name, least, ["" if row.learned is None else cell(row, row.learned) for row in rows], narrow)

    who = [
        replace(column("agents", 6, _agents(rows, wide)), is_text=wide),
        column("agent steps", 5, [count(one["agent_steps_sampled"]) for one in metrics], "agent\nsteps"),
        column("episodes", 5, [count(one["episodes"]) for one in metrics], "epi-\nsodes"),
    ]
    length = column("length", 6, [wording.length(one["episode_env_steps_mean"]) for one in metrics])
    # Such as the share of battles won; more than two would leave no room for returns.
    names = list(dict.fromkeys(name for one in metrics for name in one["infos"]))[:_MOST_INFOS]
    infos = [column(name, 5, [wording.small_number(one["infos"].get(name)) for one in metrics]) for name in names]
    spread = column("std", 5, [wording.mean_return(one["eval_return_std"]) for one in metrics])
    return [
        replace(column("policy", 1, [row.label for row in rows]), is_text=True),
        replace(learned("algorithm", 5, lambda row, _: row.about.algorithm, "algo-\nrithm"), is_text=True),
        *(who if width >= NARROW_COLUMNS else []),
        _Column("return", "per-agent\nreturn", [wording.mean_return(one["return_mean"]) for one in metrics], 7),
        *(infos if wide else []),
        *([length] if roomy else []),
        _Column("evaluation", evaluation, _evaluated(metrics), 7),
        *([spread] if roomy else []),
        learned("updates", 7, lambda _, one: count(one["updates"])),
        learned("per s", 5, lambda row, _: wording.speed(rates.get(row.plan, 0.0))),
        learned("staleness", 6, lambda _, one: wording.staleness(one["staleness_mean"]), "stale-\nness"),
        learned("loss", 6, lambda _, one: wording.small_number(wording.headline_loss(one["loss"]))),
    ]


def _agents(rows: Sequence[TableRow], wide: bool) -> list[str]:
    phrases = [wording.agents_phrase(row.about.agents) for row in rows]
    if wide and all(len(phrase) <= _AGENTS_COLUMNS for phrase in phrases):
        return phrases
    return [str(len(row.about.agents)) for row in rows]


def _loss_terms(row: TableRow, room: int) -> str:
    """Return the terms of a loss, as many as there is room for, or else its total."""
    if row.learned is None:
        return ""
    loss = row.learned["loss"]
    names = list(loss)
    for count in range(len(names), 0, -1):
        terms = wording.loss_terms({name: loss[name] for name in names[:count]})
        text = terms if count == len(names) else f"{terms}, ..."
        if len(text) <= room:
            return text
    return wording.small_number(wording.headline_loss(loss))


def _stages(
    shares: Mapping[str, StageShares], now: Report, options: ConsoleOptions, styles: Mapping[str, str]
) -> Table:
    wide, gap = options.max_width >= WIDE_COLUMNS, 2 if options.max_width >= NARROW_COLUMNS else 1
    count = wording.full_count if wide else wording.short_count
    names = [name.rpartition("/") for name in shares]
    columns = [
        _Column("plan", "plan", [plan for plan, _, _ in names], 1, is_text=True),
        _Column("stage", "stage", [stage for _, _, stage in names], 1, is_text=True),
        _Column("items", "items", [count(now["stages"][name]["items"]) for name in shares], 6),
        _Column("rows", "rows", [count(now["stages"][name]["rows"]) for name in shares], 6),
    ]
    for place, name in enumerate(("busy", "waits for input", "waits for room")):
        heading = name if wide else name.replace("for ", "for\n")
        columns.append(_Column(name, heading, [f"{share.percents[place]}%" for share in shares.values()], 6))
    if wide:
        bars = [_share_bar(share, options.ascii_only) for share in shares.values()]
        columns.append(_Column("bar", "since the last report", bars, _BAR_COLUMNS, is_text=True))
    fitted, _ = _fitted(columns, options.max_width, gap, _STAGES_LEFT_OUT)
    return _table(fitted, gap, [styles.get(plan, "") for plan, _, _ in names])


def _share_bar(share: StageShares, ascii_only: bool) -> Text:
    """Draw busy, waiting for input and waiting for room as a bar; blank means that no call ended."""
    glyphs, bar, drawn, end = _SHARE_GLYPHS_ASCII if ascii_only else _SHARE_GLYPHS, Text(), 0, 0.0
    for part, glyph, style in zip((share.busy, share.starved, share.blocked), glyphs, _SHARE_STYLES, strict=True):
        end = min(end + part, 1.0)
        # Rounding the running total, not each share, keeps the bar's length exact.
        columns = round(end * _BAR_COLUMNS) - drawn
        bar.append(glyph * columns, style)
        drawn += columns
    return bar


class LiveConsole(RunConsole):
    """Shows the run until `close`, which leaves the last state on screen.

    Log lines on the terminal appear above the view.
    """

    def __init__(
        self, info: RunInfo, terminal: Console | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._info = info
        self._terminal = terminal or Console(highlight=False)
        self._clock_s = clock_s
        self._before: Report | None = None
        self._now: Report | None = None
        self._reported_at_s = clock_s()
        self._is_open = True
        self._live = Live(
            console=self._terminal, get_renderable=self._view, refresh_per_second=1, vertical_overflow="crop"
        )
        terminal_streams = (sys.stdout, sys.stderr)
        self._live.start(refresh=True)
        # Live replaces sys.stdout and sys.stderr when it starts; handlers still hold the originals.
        self._redirected = list(_redirect_logging(terminal_streams))

    def report(self, record: Report) -> None:
        now = with_last_evaluations(self._now, record)
        self._before, self._now, self._reported_at_s = self._now, now, self._clock_s()
        self._live.refresh()

    def notice(self, text: str) -> None:
        # Not wrapped, so that a command in it can be copied.
        message = Text(f"{wording.duration(self._run_s())}  {text}", style="bold yellow")
        self._terminal.print(message, soft_wrap=True)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._live.stop()
            for handler, stream in self._redirected:
                handler.setStream(stream)

    def _run_s(self) -> float:
        return (self._now["time_s"] if self._now else 0.0) + self._clock_s() - self._reported_at_s

    def _view(self) -> View:
        if self._is_open:
            return View(self._info, self._before, self._now, self._run_s(), self._terminal.height)
        last_s = self._now["time_s"] if self._now else self._run_s()
        return View(self._info, self._before, self._now, last_s)


def _redirect_logging(terminal_streams: tuple[Any, Any]) -> Iterator[tuple[logging.StreamHandler[Any], Any]]:
    """Redirect logging handlers to the replaced terminal streams; yield the previous streams."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    handlers = {
        handler: None for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers
    }
    replacements = {id(old): new for old, new in zip(terminal_streams, (sys.stdout, sys.stderr), strict=True)}
    for handler in handlers:
        if isinstance(handler, logging.StreamHandler) and id(handler.stream) in replacements:
            previous = handler.setStream(replacements[id(handler.stream)])
            if previous is not None:
                yield handler, previous
