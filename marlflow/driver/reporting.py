"""What is said of a run while it lasts: records to files and the console, and when each stage was busy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from marlflow.base.fault_kind import FaultKind
from marlflow.config.experiment import Experiment
from marlflow.driver.checkpoint_notes import notes_of
from marlflow.flow import StageId, StageTimes
from marlflow.observe.console import RunConsole
from marlflow.observe.curves import draw_learning_curves
from marlflow.observe.report import Report
from marlflow.observe.run_log import NAME
from marlflow.observe.sinks import METRICS, JsonlSink, Sink, TensorBoardSink
from marlflow.observe.trace import Trace
from marlflow.runtime.checkpoints import Checkpoint
from marlflow.sampling.receipts import Fault

log = logging.getLogger("marlflow")

_TRACED, _LOOKED_AT = 100_000, 10_000  # intervals of stages


class Reporting:
    """Where a run's records go; also the hook that watches its stages.

    `failed` is told of each fault: which file could not be written, and why. That ends nothing here.
    """

    def __init__(
        self, experiment: Experiment, run_dir: Path, shown: RunConsole, failed: Callable[[Fault], None]
    ) -> None:
        self._experiment, self._run_dir, self._console, self._failed = experiment, run_dir, shown, failed
        # Some minutes are enough to say how learners overlap; a trace to look at is kept for longer.
        self._trace = Trace(_TRACED if experiment.log.trace else _LOOKED_AT)
        self._lines: JsonlSink | None = None
        self._lines_before = 0
        self._files: dict[Path, Sink] = {}

    @property
    def lines(self) -> int:
        """How many reports are in metrics.jsonl: a run that resumes here keeps those."""
        return self._lines_before if self._lines is None else self._lines.lines

    def begin(self, checkpoint: Checkpoint | None, drawn_plan: str) -> None:
        """Draws the plan and opens the files; a run that resumes drops the reports after its checkpoint."""
        self._try(self._run_dir / "plan.mmd", partial((self._run_dir / "plan.mmd").write_text, drawn_plan))
        before = None if checkpoint is None else notes_of(checkpoint).reports
        self._lines_before = before or 0
        if self._experiment.log.jsonl:
            self._lines = JsonlSink(self._metrics, before)
            self._files[self._metrics] = self._lines
            if checkpoint is not None and self._lines.dropped:
                self._say_dropped(self._lines.dropped, checkpoint.env_steps)
        if self._experiment.log.tensorboard:
            resumed_at = None if checkpoint is None else checkpoint.env_steps
            self._files[self._run_dir / "events.out.tfevents"] = TensorBoardSink(self._run_dir, resumed_at)

    def _say_dropped(self, lines: Sequence[str], env_steps: int) -> None:
        """A user may miss the last evaluation, which a run makes after its last checkpoint."""
        what, kept = ("1 report is", "it") if len(lines) == 1 else (f"{len(lines)} reports are", "the last of them")
        text = (
            f"{what} dropped from {METRICS}, made after the checkpoint at {env_steps:,} env steps: the run goes on "
            f"from there as if it had never stopped; {NAME} has {kept}"
        )
        log.info("%s: %s", text, lines[-1])
        self._console.notice(text)

    @property
    def _metrics(self) -> Path:
        return self._run_dir / METRICS

    def _try(self, path: Path, write: Callable[[], object]) -> None:
        """Writes to a file of reports; a disk that does not take it ends nothing."""
        try:
            write()
        except OSError as error:
            reason = f"{error.strerror or error}; free space there, or see that it can be written to"
            self._failed(Fault(FaultKind.REPORTS_FAILED, str(path), reason, "", 0))

    def sync(self) -> None:
        """The reports so far outlive the machine: a checkpoint counts on them."""
        if self._lines is not None:
            self._try(self._metrics, self._lines.sync)

    def before(self, stage: StageId, items: int) -> None:
        """Of the executor's hook; nothing is done."""

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        """Keeps when each stage was busy."""
        if times.ended_s > times.began_s:
            self._trace.add(stage.plan, stage.stage, times.began_s, times.ended_s)

    def report(self, record: Report) -> None:
        """Tells the files and the console how the run stands."""
        for path, sink in self._files.items():
            self._try(path, partial(sink.report, record))
        self._console.report(record)

    def finish(self) -> None:
        """Draws what the run left."""
        if self._experiment.log.trace:
            trace = self._run_dir / "trace.json"
            self._try(trace, partial(self._trace.write, trace))
        if self._experiment.log.jsonl and self.lines:
            curves = self._run_dir / "learning_curves.png"
            self._try(curves, partial(draw_learning_curves, self._metrics, curves, self._experiment.name))

    def overlaps(self, learning: Sequence[str]) -> str:
        """How long each two learners were busy at once, in words."""
        said = []
        for position, first in enumerate(learning):
            for second in learning[position + 1 :]:
                overlap = self._trace.overlap_s((first, "Learn"), (second, "Learn"))
                less_s = min(overlap.first_busy_s, overlap.second_busy_s)
                said.append(
                    f"learners {first} and {second} were busy at once for {overlap.both_s:.1f} of {less_s:.1f} s"
                )
        return "; ".join(said) or "one learner"

    def close(self) -> None:
        """Closes the files."""
        for path, sink in self._files.items():
            self._try(path, sink.close)


def metric(record: Mapping[str, Any], path: str) -> float | None:
    """The figure at a dotted path of a record, such as `policies.prey.return_mean`."""
    value: Any = record
    for part in path.split("."):
        value = value[part]
    return value  # type: ignore[no-any-return]  # validated when the experiment was
