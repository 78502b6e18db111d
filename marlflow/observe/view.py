"""The live view as one Rich renderable: a header, a table of policies, a table of stages.

Columns and rows depend on the terminal's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marlflow.observe import wording
from marlflow.observe.rates import StageShares, progress, rollout_shares, stage_shares, updates_per_s
from marlflow.observe.report import Report, RunInfo
from marlflow.observe.rows import TableRow, table_rows

NARROW_COLUMNS, WIDE_COLUMNS, SPREAD_COLUMNS, ALL_LOSS_TERMS_COLUMNS = 80, 110, 130, 150
_POLICY_STYLES = ("cyan", "magenta", "green", "blue", "yellow", "red")
_SHARE_STYLES = ("green", "bright_black", "yellow")
_SHARE_GLYPHS, _SHARE_GLYPHS_ASCII = "█░▒", "#.="
_BAR_COLUMNS = 24
_EVALUATION_COLUMNS = len("at 100.0k")
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
        policy_rows, stage_rows = _room(rows, len(listed), len(now["stages"]))
        yield _header(now, self.info.stop, self.clock_s)
        if faults := wording.faults_phrase(now["faults"]):
            yield _line(Text(f"faults: {faults}", style="yellow"))
        if shares := rollout_shares(self.before, now):
            yield _line(Text(f"rollout workers: {wording.shares_phrase(shares)}", style="bright_black"))
        if league := now.get("league"):
            yield _line(Text(wording.league_phrase(league), style="bright_black"))
        yield Text()
        yield _policies(listed[:policy_rows], self.before, now, options.max_width, _styles(listed))
        yield from _more(len(listed) - policy_rows, "policies")
        yield Text()
        if now["stages"]:
            yield _stages(self.before, now, options, stage_rows, _styles(listed))
            yield from _more(len(now["stages"]) - stage_rows, "stages that were less busy")
            yield Text()


def _line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _more(count: int, noun: str) -> Iterator[Text]:
    if count > 0:
        yield Text(f"and {count} more {noun}", style="bright_black")


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


def _empty_table(gap: int) -> Table:
    return Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="bold", collapse_padding=True)


def _styles(rows: Sequence[TableRow]) -> dict[str, str]:
    # The same color in both tables and in every report; policies of one learner have its color.
    plans = dict.fromkeys(row.plan for row in rows)
    return {plan: _POLICY_STYLES[place % len(_POLICY_STYLES)] for place, plan in enumerate(plans)}


def _policies(
    rows: Sequence[TableRow], before: Report | None, now: Report, width: int, styles: Mapping[str, str]
) -> Table:
    columns = _policy_columns(width, _evaluation_heading(now, width), updates_per_s(before, now))
    table = _empty_table(gap=2 if width >= WIDE_COLUMNS else 1)
    table.add_column("policy", vertical="bottom", max_width=24)
    for heading, least_width, _ in columns:
        is_text = heading.startswith("algo") or (heading == "agents" and width >= WIDE_COLUMNS)
        table.add_column(heading, no_wrap=True, justify="left" if is_text else "right", min_width=least_width)
    for row in rows:
        table.add_row(_line(Text(row.label, styles[row.plan])), *(cell(row) for _, _, cell in columns))
    return table


_Column: TypeAlias = tuple[str, int, Callable[[TableRow], str]]  # heading, least width, text


def _evaluation_heading(now: Report, width: int) -> str:
    """Return the heading of evaluation returns: the mode, and on wide terminals the opponents and env steps."""
    evaluated = [metrics for metrics in now["policies"].values() if metrics["eval_episodes"] is not None]
    modes = sorted({str(metrics["eval_mode"]) for metrics in evaluated})
    steps = max((metrics["eval_env_steps"] or 0 for metrics in evaluated), default=None)
    at = [] if steps is None or width < WIDE_COLUMNS else [f"at {wording.short_count(steps)}"]
    opponents = {opponent for metrics in evaluated for opponent in metrics["eval_against"]}
    against = [line for text in wording.against(opponents) for line in wrap(text, _EVALUATION_COLUMNS)] if at else []
    return "\n".join(["eval", *modes, *against, *at])


def _policy_columns(width: int, evaluation: str, rates: Mapping[str, float | None]) -> list[_Column]:
    wide = width >= WIDE_COLUMNS
    count = wording.full_count if wide else wording.short_count
    who: list[_Column] = [
        ("agents", 6, lambda row: wording.agents_phrase(row.about.agents) if wide else str(len(row.about.agents))),
        ("agent steps" if wide else "agent\nsteps", 5, lambda row: count(row.metrics["agent_steps_sampled"])),
        ("episodes" if wide else "epi-\nsodes", 5, lambda row: count(row.metrics["episodes"])),
    ]
    roomy = width >= SPREAD_COLUMNS
    length: _Column = ("length", 6, lambda row: wording.length(row.metrics["episode_env_steps_mean"]))
    spread: _Column = ("std", 5, lambda row: wording.mean_return(row.metrics["eval_return_std"]))
    return [
        ("algorithm" if wide else "algo-\nrithm", 5, lambda row: row.about.algorithm if row.learned else ""),
        *(who if width >= NARROW_COLUMNS else []),
        ("return", 7, lambda row: wording.mean_return(row.metrics["return_mean"])),
        *([length] if roomy else []),
        (evaluation, 7, lambda row: wording.mean_return(row.metrics["eval_return_mean"])),
        *([spread] if roomy else []),
        ("updates", 7, lambda row: count(row.learned["updates"]) if row.learned else ""),
        ("per s", 5, lambda row: wording.speed(rates.get(row.plan, 0.0)) if row.learned else ""),
        (
            "staleness" if wide else "stale-\nness",
            6,
            lambda row: wording.staleness(row.learned["staleness_mean"]) if row.learned else "",
        ),
        ("loss", 6, lambda row: _loss(row.learned["loss"], width) if row.learned else ""),
    ]


def _loss(loss: Mapping[str, float], width: int) -> str:
    if width >= ALL_LOSS_TERMS_COLUMNS:
        return wording.loss_terms(loss)
    return wording.small_number(wording.headline_loss(loss))


def _stages(before: Report | None, now: Report, options: ConsoleOptions, rows: int, styles: Mapping[str, str]) -> Table:
    wide = options.max_width >= WIDE_COLUMNS
    line_break = " " if wide else "\n"
    table = _empty_table(gap=2 if options.max_width >= NARROW_COLUMNS else 1)
    table.add_column("plan", max_width=24)
    table.add_column("stage", max_width=32)
    waits = [f"waits for{line_break}input", f"waits for{line_break}room"]
    for name in ("items", "rows", "busy", *waits):
        table.add_column(name, no_wrap=True, justify="right", min_width=6)
    if wide:
        table.add_column("since the last report", no_wrap=True)
    shares = stage_shares(before, now)
    count = wording.full_count if wide else wording.short_count
    for name in _busiest(now, rows):
        plan, _, stage = name.rpartition("/")
        share, metrics = shares[name], now["stages"][name]
        cells: list[RenderableType] = [_line(Text(plan, styles.get(plan, ""))), _line(Text(stage))]
        cells += [count(metrics["items"]), count(metrics["rows"])]
        percents = share.percents
        cells += [f"{part}%" if any(percents) else "-" for part in percents]
        table.add_row(*cells, *([_share_bar(share, options.ascii_only)] if wide else []))
    return table


def _busiest(now: Report, rows: int) -> list[str]:
    # In plan order and by total time, so that rows stay in place between reports.
    busiest = set(sorted(now["stages"], key=lambda name: -now["stages"][name]["busy_s"])[:rows])
    return [name for name in now["stages"] if name in busiest]


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
