"""Reports of a run: metrics.jsonl, TensorBoard, console, learning curves, stage traces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from marlflow.base.fault_kind import FaultKind
from marlflow.config.experiment import Experiment
from marlflow.flow import StageId, StageTimes
from marlflow.observe.console import RunConsole
from marlflow.observe.curves import draw_learning_curves
from marlflow.observe.report import Report
from marlflow.observe.run_log import NAME
from marlflow.observe.sinks import METRICS, JsonlSink, Sink, TensorBoardSink
from marlflow.observe.trace import Trace
from marlflow.runtime.checkpoint_notes import notes_of
from marlflow.runtime.checkpoints import Checkpoint
from marlflow.sampling.receipts import Fault

log = logging.getLogger("marlflow")

_TRACE_INTERVALS, _OVERLAP_INTERVALS = 100_000, 10_000  # intervals of stages


class Reporting:
    """Writes reports to files and the console; also the executor hook that traces stages.

    `failed` receives a fault for each file that could not be written.
    """

    def __init__(
        self, experiment: Experiment, run_dir: Path, console: RunConsole, failed: Callable[[Fault], None]
    ) -> None:
        self._experiment, self._run_dir = experiment, run_dir
        self._console = console
        self._failed = failed
        # The overlap of learners needs only some minutes of intervals; a trace that a person opens gets more.
        self._trace = Trace(_TRACE_INTERVALS if experiment.log.trace else _OVERLAP_INTERVALS)
        self._lines: JsonlSink | None = None
        self._lines_before = 0
        self._files: dict[Path, Sink] = {}

    @property
    def lines(self) -> int:
        """Number of reports in metrics.jsonl."""
        return self._lines_before if self._lines is None else self._lines.lines

    def begin(self, checkpoint: Checkpoint | None, drawn_plan: str) -> None:
        """Write the plan and open the files; drop reports after a resumed checkpoint."""
        self._write(self._run_dir / "plan.mmd", partial((self._run_dir / "plan.mmd").write_text, drawn_plan))
        before = None if checkpoint is None else notes_of(checkpoint).reports
        self._lines_before = before or 0
        if self._experiment.log.jsonl:
            self._lines = JsonlSink(self._metrics_path, before)
            self._files[self._metrics_path] = self._lines
            if checkpoint is not None and self._lines.dropped:
                self._report_dropped(self._lines.dropped, checkpoint.env_steps)
        if self._experiment.log.tensorboard:
            resumed_at = None if checkpoint is None else checkpoint.env_steps
            self._files[self._run_dir / "events.out.tfevents"] = TensorBoardSink(self._run_dir, resumed_at)

    def _report_dropped(self, lines: Sequence[str], env_steps: int) -> None:
        # A user may miss the final evaluation, which a run reports after its last checkpoint.
        count, kept = ("1 report is", "it") if len(lines) == 1 else (f"{len(lines)} reports are", "the last of them")
        text = (
            f"{count} dropped from {METRICS}, made after the checkpoint at {env_steps:,} env steps: the run goes on "
            f"from there as if it had never stopped; {NAME} has {kept}"
        )
        log.info("%s: %s", text, lines[-1])
        self._console.notice(text)

    @property
    def _metrics_path(self) -> Path:
        return self._run_dir / METRICS

    def _write(self, path: Path, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            reason = f"{error.strerror or error}; free space there, or see that it can be written to"
            self._failed(Fault(FaultKind.REPORTS_FAILED, str(path), reason, "", 0))

    def sync(self) -> None:
        """Flush metrics.jsonl to disk."""
        if self._lines is not None:
            self._write(self._metrics_path, self._lines.sync)

    def before(self, stage: StageId, items: int) -> None:
        pass

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        if times.ended_s > times.began_s:
            self._trace.add(stage.plan, stage.stage, times.began_s, times.ended_s)

    def report(self, report: Report) -> None:
        """Write a report."""
        for path, sink in self._files.items():
            self._write(path, partial(sink.report, report))
        self._console.report(report)

    def finish(self) -> None:
        """Write the trace and draw the learning curves."""
        if self._experiment.log.trace:
            trace = self._run_dir / "trace.json"
            self._write(trace, partial(self._trace.write, trace))
        if self._experiment.log.jsonl and self.lines:
            curves = self._run_dir / "learning_curves.png"
            self._write(curves, partial(draw_learning_curves, self._metrics_path, curves, self._experiment.name))

    def overlaps(self, learning: Sequence[str]) -> str:
        """Describe how long each pair of learners was busy at the same time."""
        sentences = []
        for position, first in enumerate(learning):
            for second in learning[position + 1 :]:
                overlap = self._trace.overlap_s((first, "Learn"), (second, "Learn"))
                less_s = min(overlap.first_busy_s, overlap.second_busy_s)
                sentences.append(
                    f"learners {first} and {second} were busy at once for {overlap.both_s:.1f} of {less_s:.1f} s"
                )
        return "; ".join(sentences) or "one learner"

    def close(self) -> None:
        """Close the files."""
        for path, sink in self._files.items():
            self._write(path, sink.close)


def metric(report: Mapping[str, Any], path: str) -> float | None:
    """Return the metric at a dotted path, such as `policies.prey.return_mean`."""
    value: Any = report
    for part in path.split("."):
        value = value[part]
    return value  # type: ignore[no-any-return]  # validated when the experiment was
