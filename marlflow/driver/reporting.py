"""Reports of a run: to sinks and callbacks, the console, learning curves, and the timeline."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from marlflow.base.errors import InvalidInput
from marlflow.base.serialization import Tree
from marlflow.config.experiment import Experiment
from marlflow.driver.callbacks import Callbacks, write_fault
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service, due_within
from marlflow.flow import StageId, StageTimes, Together
from marlflow.flow.flow import Kind
from marlflow.flow.plan import all_stages, owners
from marlflow.observe.callback import Callback, RunEnd
from marlflow.observe.console import RunConsole
from marlflow.observe.figure import draw_learning_curves
from marlflow.observe.report import Report, ResumePoint, RunInfo
from marlflow.observe.run_log import NAME
from marlflow.observe.sinks import METRICS, JsonlSink
from marlflow.observe.tensorboard import TensorBoardSink
from marlflow.observe.timeline import Span, Timeline, WorkerSpan, busy_at_once
from marlflow.observe.trace_events import TRACE
from marlflow.runs.checkpoint_format import notes_of
from marlflow.runs.checkpoints import Checkpoint
from marlflow.sampling.protocol import Round
from marlflow.sampling.receipts import Fault
from marlflow.sampling.saved_state import ResumeReport

log = logging.getLogger("marlflow")

# The last calls of Learn that are kept of each learner: some minutes of the fastest ones.
_MOST_CALLS = 10_000


class Reporting(Service):
    """Writes reports to files, callbacks and the console; also the executor hook that observes stages.

    `failed` receives a fault for each file that could not be written, and for each exception of a callback.
    """

    def __init__(
        self,
        experiment: Experiment,
        info: RunInfo,
        console: RunConsole,
        failed: Callable[[Fault], None],
        metrics: RunMetrics,
    ) -> None:
        self._experiment, self._info = experiment, info
        self._console = console
        self._failed = failed
        self._learned: dict[str, deque[Span]] = defaultdict(partial(deque, maxlen=_MOST_CALLS))
        self._lines = JsonlSink(self._metrics_path) if experiment.log.jsonl else None
        self._lines_before = 0
        self._timeline = Timeline(info.run_dir / TRACE) if experiment.log.trace else None
        self._asynchronous = experiment.rollouts.pace == "asynchronous"
        self.callbacks = Callbacks(dict(self._own_sinks()), experiment, failed, metrics)

    def _own_sinks(self) -> Iterator[tuple[Path, Callback]]:
        if self._lines is not None:
            yield self._metrics_path, self._lines
        if self._experiment.log.tensorboard:
            yield self._info.run_dir / "events.out.tfevents", TensorBoardSink(self._info.run_dir)
        if self._timeline is not None:
            yield self._info.run_dir / TRACE, self._timeline

    @property
    def lines(self) -> int:
        """Number of reports in metrics.jsonl."""
        return self._lines_before if self._lines is None else self._lines.lines

    def start(self, checkpoint: Checkpoint | None, plan: Together, queued: Callable[[], Mapping[str, int]]) -> None:
        """Write the plan and begin all callbacks; drop reports after a resumed checkpoint.

        `queued` returns the number of items at each stage.
        """
        path = self._info.run_dir / "plan.mmd"
        self._write(path, partial(path.write_text, plan.mermaid()))
        if self._timeline is not None:
            self._timeline.follow(*_stages_of_rounds(plan), queued)
        if checkpoint is not None:
            self._lines_before = notes_of(checkpoint).reports or 0
            resumed = ResumePoint(checkpoint.env_steps, self._lines_before)
            self._info = replace(self._info, resumed=resumed)
        self.callbacks.began(self._info)
        if checkpoint is not None and self._lines is not None and self._lines.dropped:
            self._report_dropped(self._lines.dropped, checkpoint.env_steps)

    def _report_dropped(self, lines: Sequence[str], env_steps: int) -> None:
        # Users may look for the final evaluation, which a run reports after its last checkpoint.
        count, kept = ("1 report is", "it") if len(lines) == 1 else (f"{len(lines)} reports are", "the last of them")
        text = (
            f"{count} dropped from {METRICS}, made after the checkpoint at {env_steps:,} env steps: the run continues "
            f"from there as if it had never stopped; {NAME} has {kept}"
        )
        log.info("%s: %s", text, lines[-1])
        self._console.notice(text)

    @property
    def _metrics_path(self) -> Path:
        return self._info.run_dir / METRICS

    def _write(self, path: Path, write: Callable[[], object]) -> None:
        try:
            write()
        # No axis has places for numbers near the largest float, and lines of reports may be damaged.
        except (OSError, ValueError, InvalidInput) as error:
            self._failed(write_fault(path, error))

    def save(self, env_steps: int, save: Callable[[int], Path]) -> Path:
        """Save a checkpoint with `save`, whose argument is the number of reports; raises its errors."""
        # The checkpoint's notes count the lines of metrics.jsonl, which must be on disk by then.
        if self._lines is not None:
            self._write(self._metrics_path, self._lines.sync)
        began_s = time.time()
        try:
            path = save(self.lines)
        finally:
            if self._timeline is not None:
                self._timeline.saved_checkpoint((began_s, time.time()), env_steps)
        self.callbacks.saved(path)
        return path

    def before(self, stage: StageId, items: int) -> None:
        if self._timeline is not None:
            self._timeline.before(stage, items)

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        if times.ended_s > times.began_s:
            if stage.stage == "Learn":
                self._learned[stage.plan].append((times.began_s, times.ended_s))
            if self._timeline is not None:
                self._timeline.after(stage, items, times)

    async def after_round(self, round: Round) -> None:
        if self._timeline is not None:
            spans = [
                WorkerSpan(
                    receipt.worker,
                    receipt.began_s,
                    receipt.env_s,
                    receipt.policy_s,
                    receipt.bookkeeping_s,
                    receipt.env_steps,
                    receipt.agent_steps,
                )
                for receipt in round.receipts
            ]
            self._timeline.collected(spans, not self._asynchronous)

    def report(self, report: Report) -> None:
        """Write a report."""
        self.callbacks.reported(report)
        self._console.report(report)

    def finish(self) -> None:
        """Draw the learning curves."""
        if self._experiment.log.jsonl and self.lines:
            curves = self._info.run_dir / "learning_curves.png"
            self._write(curves, partial(draw_learning_curves, self._metrics_path, curves, self._experiment.name))

    def overlaps(self, learning: Sequence[str]) -> str:
        """Describe how long each pair of learners was busy at the same time."""
        return busy_at_once({name: self._learned[name] for name in learning}) or "one learner"

    def end(self, stopped_by: str, last: Report, error: BaseException | None) -> None:
        """End all callbacks, with the error that the run raises, if any."""
        text = None if error is None else f"{type(error).__name__}: {error}"
        self.callbacks.ended(RunEnd(stopped_by, last, text))


class ReportTiming(Service):
    """Calls `report` every `every_env_steps`."""

    def __init__(self, every_env_steps: int, metrics: RunMetrics, report: Callable[[], None]) -> None:
        self._every = self._due = every_env_steps
        self._metrics, self._report = metrics, report

    def state(self) -> Tree:
        return self._due

    def load_state(self, state: Tree) -> None:
        self._due = state

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        self._due = due_within(self._due, self._metrics.env_steps, self._every)

    async def after_round(self, round: Round) -> None:
        if self._metrics.env_steps >= self._due:
            while self._due <= self._metrics.env_steps:
                self._due += self._every
            self._report()


def _stages_of_rounds(plan: Together) -> tuple[list[str], list[str]]:
    """Return the stages that collect rounds, and the stages that publish weights, as `plan/stage`."""
    owner_of = owners(plan)
    named = {f"{owner_of[id(stage)]}/{stage.name}": stage for stage in all_stages(plan)}
    collecting = [name for name, stage in named.items() if stage.kind is Kind.SOURCE and id(stage) in plan.shared]
    return collecting, [name for name, stage in named.items() if stage.traits.publishes]
