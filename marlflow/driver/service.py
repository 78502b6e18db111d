"""Services: the parts of a run that the driver calls at the same points, each with a state of its own."""

from __future__ import annotations

from marlflow.base.errors import MarlflowError
from marlflow.base.serialization import Tree
from marlflow.batches.items import Update
from marlflow.observe.report import Report
from marlflow.runs.checkpoints import Checkpoint
from marlflow.sampling.protocol import Round
from marlflow.sampling.saved_state import ResumeReport


def due_within(due: int, env_steps: int, every: int) -> int:
    """Return when something is due in a run resumed at `env_steps`: at `due`, or earlier if `every` is shorter now.

    >>> due_within(50_000, 300, every=200), due_within(400, 300, every=1_000)
    (400, 400)
    """
    return min(due, (env_steps // every + 1) * every)


class Service:
    """Base class of a run's services: override methods as needed; every method does nothing by default.

    A run begins, collects rounds and updates learners, ends its training, evaluates, reports and closes. `services.py`
    has the order in which services are called. `failure` is the error that the run raises at its end, if any.
    """

    failure: MarlflowError | None = None

    def state(self) -> Tree:
        """Return the state that a resumed run needs; None: nothing. Called at rest, for each checkpoint."""
        return None

    def state_shape(self) -> Tree:
        """Return what a saved state has to look like: that of a run that has just been made, for most services."""
        return self.state()

    def load_state(self, state: Tree) -> None:
        """Restore what `state` returned; called before `begin`, if it was not None."""

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        """Continue from a checkpoint, once the states of all services are restored; `report` has the losses."""

    def begin(self) -> None:
        """Begin to train."""

    async def after_round(self, round: Round) -> None:
        """Handle a collected round, before its rows reach the learners."""

    def updated(self, learner: str, update: Update) -> None:
        """Handle an update of a learner."""

    def add_metrics(self, report: Report) -> None:
        """Add to a report that is being made; nothing else may change, since not every report is written."""

    def after_training(self) -> None:
        """Handle the end of training, whatever ended it."""

    def at_end(self) -> None:
        """Evaluate the trained policies after training, unless a signal or an exceeded fault budget ended it."""

    def close(self) -> None:
        """Handle the end of the run, after its last report."""
