"""`marlflow report`: compare runs on one page that needs no network, and write its numbers as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marlflow.cli.options import UNITS, Arguments, Command, Option
from marlflow.cli.progress import shown_progress

if TYPE_CHECKING:
    from marlflow.html_report.results import GroupComparison


def run_report(arguments: Arguments) -> int:
    """Write the report and print its final returns; return 0. Raises InvalidInput."""
    from marlflow.html_report.groups import Grouping
    from marlflow.html_report.report import write_report
    from marlflow.html_report.texts import count

    grouping = Grouping(tuple(arguments["group_by"]), tuple(arguments["merge"]))
    folders = [Path(word) for word in arguments.operands]
    with shown_progress():
        written = write_report(folders, Path(arguments["out"]), arguments["returns"], grouping, arguments["units"])
    # Names come from files, and a terminal acts upon control characters.
    for line in (*(f"note: {note}" for note in written.notes), *_lines(written.comparisons)):
        print("".join(sign if sign.isprintable() else "?" for sign in line.replace("−", "-")))
    page, *others = written.files
    print(f"wrote {page}: {count(written.runs, 'run')} in {count(written.groups, 'group')}")
    print(f"wrote {', '.join(path.name for path in others)} next to it")
    return 0


def _lines(comparisons: Sequence[GroupComparison]) -> Iterator[str]:
    from marlflow.html_report.files import decimals
    from marlflow.html_report.texts import amount

    environments = {comparison.task.name for comparison in comparisons}
    for comparison in comparisons:
        digits = decimals(comparison)
        where = f"{comparison.task.name}: " if len(environments) > 1 else ""
        what = f"{comparison.measure.unit}, {comparison.mode}; final {comparison.summary or 'return'}"
        yield f"{where}{comparison.measure.title} ({comparison.measure.key}), {what}:"
        width = max(len(row.group.name) for row in comparison.rows)
        for row in sorted(comparison.rows, key=lambda row: -row.final.value):
            ends = [amount(end, digits) for end in (row.final.low, row.final.high) if end is not None]
            names = "" if comparison.summary or not ends else f", {row.names.text}"
            interval = f" [{', '.join(ends)}]" if ends else ""
            value = f"{amount(row.final.value, digits)}{interval}"
            yield f"  {row.group.name:<{width}}  {value}  n={len(row.series)}{names}"


_ABOUT = """
RUN is the folder of a run, or a folder with runs in it, such as the folder of a sweep. Runs may be in progress. Runs
that differ only in seed (log and checkpoint aside) are one group: its curve is the interquartile mean (IQM) over the
runs, with a 95 % bootstrap interval over seeds; of two to four runs, with their range.

It prints the final returns, and writes into the folder OUT:
  index.html       curves over env steps and time, final returns over settings that vary, final and best returns,
                   probability of improvement, env steps and time to a return, times of stages, faults,
                   differences of configurations, plans, leagues, videos, results of evaluate, and how each run
                   ended; it needs no network
  table.csv        its results, one line for each group and return
  improvement.csv  its probabilities of improvement, one line for each pair of groups
  settings.csv     its final returns over numeric settings that vary, one line for each setting and group
  curves.csv       the points of its curves: env steps, time and return of each run
  table.tex        final and best returns as a LaTeX table
  marl_eval.json   all evaluations during training, in the format of marl-eval
  runs.csv         its runs, with the state of each
  evaluations.csv  results of evaluate
  report.json      all of these tables but curves.csv

No file in RUN is changed, and nothing in it is imported.
"""

COMMAND = Command(
    "report",
    run_report,
    (
        Option("out", "folder to write to; a report in it is replaced", value="FOLDER", default="report"),
        Option(
            "returns",
            "returns to time: env steps and time until each is reached; by default 50 % and 90 % of the way from the "
            "first return to the best final one",
            "number",
            "NUMBERS",
            several=True,
        ),
        Option(
            "group_by",
            "keys of the configuration, whole or their ends: runs with equal values are one group, whatever else "
            "differs; an algorithm counts by its class: group_by=algorithm; by default, all keys count but the seed",
            value="KEYS",
            several=True,
        ),
        Option(
            "merge",
            "keys of env: environments that differ only in these are compared in one section; merge=env for all. "
            "Wrappers that only add a state never count",
            value="KEYS",
            several=True,
        ),
        UNITS,
    ),
    _ABOUT,
    (
        "runs/rates",
        "runs/simple_tag/2026-01-31_12-00-00 runs/simple_tag/2026-01-31_13-30-00 out=report/tag",
        "runs/ppo runs/dqn returns=150,190",
        "runs/spread group_by=algorithm,learning_rate merge=env.max_cycles",
    ),
    most=None,
)
