"""A run's console: a live view on a terminal, plain lines in a pipe, or none."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import Literal, TextIO, TypeAlias

from marlflow.base.errors import ConfigInvalid
from marlflow.observe import wording
from marlflow.observe.rates import rollout_shares, table_rows, updates_per_s, with_last_evaluations
from marlflow.observe.report import LearnerMetrics, PolicyInfo, PolicyMetrics, Report, RunInfo

log = logging.getLogger("marlflow")

ConsoleKind: TypeAlias = Literal["auto", "live", "plain", "none"]


class RunConsole:
    """Base class of consoles: shows reports and messages. This one shows nothing."""

    def report(self, record: Report) -> None:
        """Show a report."""

    def close(self) -> None:
        """Leave the last state or a summary; may be called twice."""

    def notice(self, text: str) -> None:
        """Show a message, such as "stopping after this round"; after `close`, below the summary."""


class DetachableConsole(RunConsole):
    """Writes to `console` until its output breaks: a closed terminal or pipe does not end a run."""

    def __init__(self, console: RunConsole) -> None:
        self._console: RunConsole = console

    def report(self, record: Report) -> None:
        self._try(lambda: self._console.report(record))

    def notice(self, text: str) -> None:
        self._try(lambda: self._console.notice(text))

    def close(self) -> None:
        self._try(self._console.close)

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except OSError as error:
            self._console = RunConsole()
            log.warning("the run's output cannot be written any more (%s), so nothing more is shown", error)


def console(kind: ConsoleKind, info: RunInfo) -> RunConsole:
    """Open a console; `auto` is live on a terminal that can redraw, or else plain.

    Raises ConfigInvalid for another kind.
    """
    if kind == "none":
        return RunConsole()
    if kind == "plain" or (kind == "auto" and not _can_redraw()):
        return PlainConsole(info)
    if kind in ("auto", "live"):
        # Importing rich takes a while; other consoles do without it.
        from marlflow.observe.view import LiveConsole

        return LiveConsole(info)
    raise ConfigInvalid([f"log.console: expected auto, live, plain or none, got {kind!r}"])


def _can_redraw() -> bool:
    from rich.console import Console

    terminal = Console()
    return terminal.is_terminal and not terminal.is_dumb_terminal and not terminal.is_jupyter


_RETURN_COLUMNS = len(" 100.00 +- 100.00 at 999,999")


class PlainConsole(RunConsole):
    """Writes lines without colors or cursor movement: the run's setup, each report, and a summary."""

    def __init__(self, info: RunInfo, file: TextIO | None = None) -> None:
        self._file = file or sys.stdout
        self._run_dir = info.run_dir
        self._policies = info.policies
        self._last: Report | None = None
        self._evaluation_columns = len("greedy") + _RETURN_COLUMNS
        self._closed = False
        self._write(_opening(info))

    def report(self, record: Report) -> None:
        # The last report of a run may repeat an env step; its new values are in the summary. A run that failed in its
        # first round, at env step 0, has nothing but faults to report.
        if record["env_steps"] not in (0, None if self._last is None else self._last["env_steps"]):
            self._write_policies(record)
            if league := record.get("league"):
                self._write(f"{_clock(record)}  {wording.league_phrase(league)}")
        if record["faults"] != (self._last["faults"] if self._last else {}):
            faults = wording.faults_phrase(record["faults"])
            if faults:
                self._write(f"{_clock(record)}  faults so far: {faults}")
        if record["env_steps"]:
            self._last = with_last_evaluations(self._last, record)

    def _write_policies(self, record: Report) -> None:
        rates, rows = updates_per_s(self._last, record), table_rows(self._policies, record)
        labels = wording.padded(row.label for row in rows)
        widths = [len(_mode_and_opponents(metrics)) + _RETURN_COLUMNS for metrics in record["policies"].values()]
        self._evaluation_columns = max([self._evaluation_columns, *widths])  # that of the reports to come, too
        for row in rows:
            columns = _return_columns(row.metrics, _evaluated(row.metrics).ljust(self._evaluation_columns))
            learned = "" if row.learned is None else f"  {_learner_columns(row.learned, rates.get(row.plan, 0.0))}"
            self._write(f"{_clock(record)}  {labels[row.label]}  {columns}{learned}".rstrip())

    def notice(self, text: str) -> None:
        self._write(text)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._write(f"{_summary(self._last, self._policies)}; its folder is {self._run_dir}")

    def _write(self, line: str) -> None:
        try:
            self._file.write(line + "\n")
        except UnicodeEncodeError as error:
            # A name has a character that the terminal's encoding lacks.
            self._file.write(line.encode(error.encoding, "replace").decode(error.encoding) + "\n")
        # A pipe is block-buffered; its reader should see each line at once.
        self._file.flush()


def _opening(info: RunInfo) -> str:
    policies = "; ".join(
        f"{policy} = {about.algorithm}{_of_learner(policy, about)} for {wording.agents_phrase(about.agents)}"
        for policy, about in info.policies.items()
    )
    until = f"until {wording.stop_phrase(info.stop)}; returns are per agent"
    return f"{info.name} (runtime {info.runtime}): {policies}; {until}"


def _of_learner(policy: str, about: PolicyInfo) -> str:
    return "" if about.learner in (None, policy) else f" of learner {about.learner}"


def _clock(record: Report) -> str:
    steps, per_s = wording.full_count(record["env_steps"]), wording.speed(record["env_steps_per_s"])
    return f"{wording.duration(record['time_s']):>8}  {steps:>11} env steps {per_s:>7}/s"


def _return_columns(metrics: PolicyMetrics, evaluated: str) -> str:
    trained = wording.spread(metrics["return_mean"], metrics["return_std"])
    infos = f"  {wording.infos(metrics['infos'])}" if metrics["infos"] else ""
    length = wording.length(metrics["episode_env_steps_mean"])
    return f"return {trained:>18}  length {length:>6}{infos}  eval {evaluated}"


def _learner_columns(metrics: LearnerMetrics, rate: float | None) -> str:
    return (
        f"updates {wording.full_count(metrics['updates']):>9} {wording.speed(rate):>6}/s  "
        f"staleness {wording.staleness(metrics['staleness_mean']):>4}  loss {wording.loss_terms(metrics['loss'])}"
    )


def _evaluated(metrics: PolicyMetrics) -> str:
    env_steps = metrics["eval_env_steps"]
    if env_steps is None:
        return wording.UNKNOWN
    played, asked = metrics["eval_episodes"], metrics["eval_episodes_asked"]
    left_out = f" ({played} of {asked} episodes)" if (played or 0) < (asked or 0) else ""
    return f"{_evaluation(metrics)} at {wording.full_count(env_steps)}{left_out}"


def _evaluation(metrics: PolicyMetrics) -> str:
    found = f"{_mode_and_opponents(metrics)} {wording.spread(metrics['eval_return_mean'], metrics['eval_return_std'])}"
    return f"{found}, {wording.infos(metrics['eval_infos'])}" if metrics["eval_infos"] else found


def _mode_and_opponents(metrics: PolicyMetrics) -> str:
    return " ".join([str(metrics["eval_mode"]), *wording.against(metrics["eval_against"])])


def _summary(record: Report | None, policies: Mapping[str, PolicyInfo]) -> str:
    if record is None:
        return "ended before the first report"
    rows = table_rows(policies, record)
    returns = "; ".join(
        _policy_summary(row.label.strip(), row.metrics, row.learned, record["env_steps"]) for row in rows
    )
    steps, episodes = wording.full_count(record["env_steps"]), wording.full_count(record["episodes"])
    shares = wording.shares_phrase(rollout_shares(None, record))
    workers = f" (rollout workers: {shares})" if shares else ""
    took = wording.duration(record["time_s"])
    return f"ended after {took}, {steps} env steps, {episodes} episodes{workers}: {returns}"


def _policy_summary(policy: str, metrics: PolicyMetrics, learned: LearnerMetrics | None, env_steps: int) -> str:
    summary = f"{policy} return {wording.mean_return(metrics['return_mean'])}"
    if learned is not None and learned["updates"]:
        summary += f", updates {wording.full_count(learned['updates'])}"
    if (episodes := metrics["eval_episodes"]) is None or (evaluated_at := metrics["eval_env_steps"]) is None:
        return summary
    # An evaluation of an earlier version says at which env step it was made.
    is_final = (evaluated_at, metrics["eval_version"]) == (env_steps, metrics["version"])
    at = "" if is_final else f", at {wording.full_count(evaluated_at)} env steps"
    return f"{summary} (eval {_evaluation(metrics)} over {wording.full_count(episodes)} episodes{at})"
