"""What is said of a run while it lasts: records to files and the console, and when each stage was busy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marlflow.experiment.experiment import Experiment
from marlflow.experiment.notes import notes_of
from marlflow.flow import StageId, StageTimes
from marlflow.observe.console import RunConsole
from marlflow.observe.curves import draw_learning_curves
from marlflow.observe.record import MetricsRecord
from marlflow.observe.sinks import JsonlSink, Sink, TensorBoardSink
from marlflow.observe.trace import Trace
from marlflow.runtime.checkpoints import Checkpoint

_TRACED, _LOOKED_AT = 100_000, 10_000  # intervals of stages


class Reporting:
    """Where a run's records go; also the hook that watches its stages. `count` reports were made so far."""

    def __init__(self, experiment: Experiment, run_dir: Path, shown: RunConsole) -> None:
        self._experiment, self._run_dir, self._console = experiment, run_dir, shown
        # Some minutes are enough to say how learners overlap; a trace to look at is kept for longer.
        self._trace = Trace(_TRACED if experiment.log.trace else _LOOKED_AT)
        self.count = 0
        self._lines: JsonlSink | None = None
        self._files: list[Sink] = []

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Opens the files; a run that goes on from a checkpoint drops the reports that were made after it."""
        before = None if checkpoint is None else notes_of(checkpoint).reports
        self.count = before or 0
        if self._experiment.log.jsonl:
            self._lines = JsonlSink(self._run_dir / "metrics.jsonl", before)
            self._files.append(self._lines)
        if self._experiment.log.tensorboard:
            self._files.append(TensorBoardSink(self._run_dir, None if checkpoint is None else checkpoint.env_steps))

    def sync(self) -> None:
        """The reports so far outlive the machine: a checkpoint counts on them."""
        if self._lines is not None:
            self._lines.sync()

    def before(self, stage: StageId, items: int) -> None:
        """Of the executor's hook; nothing is done."""

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        """Keeps when each stage was busy."""
        if times.ended_s > times.began_s:
            self._trace.add(stage.plan, stage.stage, times.began_s, times.ended_s)

    def report(self, record: MetricsRecord) -> None:
        """Tells the files and the console how the run stands."""
        self.count += 1
        for sink in (*self._files, self._console):
            sink.report(record)

    def finish(self) -> None:
        """Draws what the run left."""
        if self._experiment.log.trace:
            self._trace.write(self._run_dir / "trace.json")
        if self._experiment.log.jsonl:
            curves = self._run_dir / "learning_curves.png"
            draw_learning_curves(self._run_dir / "metrics.jsonl", curves, self._experiment.name)

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
        for sink in self._files:
            sink.close()


def figure(record: Mapping[str, Any], path: str) -> float | None:
    """The figure at a dotted path of a record, such as `policies.prey.return_mean`."""
    value: Any = record
    for part in path.split("."):
        value = value[part]
    return value  # type: ignore[no-any-return]  # validated when the experiment was
