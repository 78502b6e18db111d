"""A run: executes its plan, calls its services, and handles reports and checkpoints."""

from __future__ import annotations

from pathlib import Path

from marlflow.base.errors import CheckpointUnusable, MarlflowError
from marlflow.base.serialization import Tree, differences_of_shape
from marlflow.config.checked import CheckedExperiment
from marlflow.driver.checkpointing import QueuedItems
from marlflow.driver.graceful_shutdown import GracefulShutdown
from marlflow.driver.relay import Relay
from marlflow.driver.services import RunServices
from marlflow.observe.console import RunConsole
from marlflow.observe.report import Report, RunInfo, metric
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runs.saved_runs import usable
from marlflow.runtime.protocol import Runtime


class Run:
    """A run, resumed from `checkpoint` if there is one.

    The run executes its plan; its services do everything else (see RunServices). `last` is the last report,
    `stopped_by` the reason why the run ended.
    """

    def __init__(
        self,
        checked: CheckedExperiment,
        info: RunInfo,
        runtime: Runtime,
        console: RunConsole,
        relay: Relay,
        shutdown: GracefulShutdown,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._best, self._runtime, self._shutdown = checked.experiment.checkpoint.best, runtime, shutdown
        self.stopped_by, self._has_ended = "", False
        self._made = made = RunServices(
            checked, info, runtime, console, relay, shutdown, self.report, self._save, self._rating
        )
        self._services, self._executor, self._metrics = made.by_name, made.executor, made.metrics
        self.budget, self.reporting = made.budget, made.reporting
        if checkpoint is not None:
            self._resume_from(checkpoint)
        self.reporting.start(checkpoint, made.plan, self._executor.held)
        self.last: Report = self._current_report()

    @property
    def failure(self) -> MarlflowError | None:
        """The error to raise at the end: too many faults, or a failed last checkpoint."""
        return next((service.failure for service in self._services.values() if service.failure is not None), None)

    @property
    def saved_at(self) -> int | None:
        return self._made.checkpointer.saved_at

    def run(self) -> None:
        """Train until a stop condition holds, then save, evaluate and report."""
        for service in self._services.values():
            service.begin()
        self._executor.run_sync()
        self.stopped_by = self._made.between_rounds.why_ended()
        for service in self._services.values():
            service.after_training()
        if not self._shutdown.requested and self.budget.failure is None:
            for service in self._services.values():
                service.at_end()
        # A signal may also have come while the run was ending.
        self.stopped_by = self._shutdown.requested or self.stopped_by
        self.report()
        self._has_ended = True
        # Closed last: an environment that hangs or crashes here can no longer harm the saved files.
        if faults := self._runtime.close_environments():
            for fault in faults:
                self.budget.faulted(fault)
            self.report()
        for service in self._services.values():
            service.close()

    # -- checkpoints --------------------------------------------------------------------------------------------

    def _save(self) -> Path:
        at, frozen = self._metrics.env_steps, self._made.members.contents()
        best, save = self._rating(), self._made.checkpointer.save
        return self.reporting.save(at, lambda lines: save(at, self._state, frozen, lines, best))

    def _rating(self) -> float | None:
        """Return the metric `checkpoint.best` for a checkpoint that is taken now; None if it has none."""
        if self._best is None or not self._made.checkpoints.is_rated:
            return None
        return metric(self._current_report(), self._best)

    def _state(self, queued: QueuedItems) -> Tree:
        states = {name: service.state() for name, service in self._services.items()}
        flow = self._executor.state(queued.to_tree)
        return {"flow": flow, **{name: state for name, state in states.items() if state is not None}}

    def _resume_from(self, checkpoint: Checkpoint) -> None:
        if "dealer" in self._services:
            with usable(checkpoint):
                self._made.members.restore(checkpoint)
        state, queued, report = self._made.checkpointer.restore(checkpoint, self._made.members)
        with usable(checkpoint):
            # Validated before anything is loaded: a checkpoint is untrusted input.
            shapes = {name: service.state_shape() for name, service in self._services.items()}
            shapes["flow"] = self._executor.state(QueuedItems().to_tree)
            expected = {name: shape for name, shape in shapes.items() if shape is not None}
            if differences := list(differences_of_shape(expected, state)):
                text = f"what the driver knew is not of the shape that it has: {differences[0]}"
                raise CheckpointUnusable(
                    [f"{text}; if another version of marlflow wrote it, only that version resumes from it"]
                )
            self._executor.load_state(state["flow"], queued.from_tree)
            for name, service in self._services.items():
                if state.get(name) is not None:
                    service.load_state(state[name])
        for service in self._services.values():
            service.resumed(checkpoint, report)

    # -- reports ------------------------------------------------------------------------------------------------

    def _current_report(self) -> Report:
        time_s, stages = self._made.clock.elapsed_s, self._executor.meters()  # at one instant
        training_s, store_bytes = self._made.clock.training_s, self._runtime.object_store_bytes()
        report = self._metrics.report(time_s, training_s, stages, self._made.published(), store_bytes)
        for service in self._services.values():
            service.add_metrics(report)
        # A callback may have failed just now, in `metrics`.
        report["faults"] = self._metrics.fault_counts()
        return report

    def report(self) -> None:
        """Write a report."""
        self.last = self._current_report()
        # `last` keeps evaluations that earlier reports have; the files get each evaluation once.
        new_report = self._metrics.without_old_evaluations(self.last)
        self._metrics.reported(self._made.clock.training_s)
        self.reporting.report(new_report)
        # With what callbacks made of the report.
        if "callbacks" in new_report:
            self.last["callbacks"] = new_report["callbacks"]

    def report_failure(self) -> None:
        """Report the totals after a stage has failed, if there are any."""
        self.budget.report_environment_faults()
        if not self._has_ended and (self._metrics.env_steps or any(self._metrics.faults.values())):
            self.report()

    def close(self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        """End the callbacks, with the error that the run raises, if any."""
        self.reporting.end(self.stopped_by, self.last, error or self.failure)
