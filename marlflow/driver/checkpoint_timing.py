"""When a run takes checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from marlflow.base.errors import ActorLost, CheckpointFailed, FaultKind
from marlflow.driver.checkpointing import Checkpointer
from marlflow.driver.faults import FaultBudget
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service
from marlflow.runs.checkpoints import Checkpoint
from marlflow.sampling.receipts import Fault
from marlflow.sampling.saved_state import ResumeReport

log = logging.getLogger("marlflow")


class CheckpointTiming(Service):
    """Calls `save` after the first round and then every `every_env_steps`; None: only at the end of the run.

    A failed checkpoint is a fault. `failure` is the error of the last attempt, or None.
    """

    def __init__(
        self,
        every_env_steps: int | None,
        metrics: RunMetrics,
        checkpointer: Checkpointer,
        save: Callable[[], Path],
        budget: FaultBudget,
    ) -> None:
        self._every = every_env_steps
        self._metrics = metrics
        self._checkpointer = checkpointer
        self._save = save
        self._budget = budget
        # Due after the first round, so that a folder that cannot be written is noticed at the start (decision 0024).
        self._due = 0

    @property
    def has_news(self) -> bool:
        """Whether env steps were taken since the last checkpoint."""
        return self._metrics.env_steps not in (0, self._checkpointer.saved_at)

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is due after this round."""
        return self._every is not None and self._metrics.env_steps >= self._due

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        if self._every is not None:
            self._due = self._metrics.env_steps + self._every

    def after_training(self) -> None:
        if self.has_news and self.failure is None and self._budget.failure is None:
            self.take()

    def take(self) -> None:
        """Take a checkpoint while nothing is in flight; count a failure as a fault."""
        while self._every is not None and self._metrics.env_steps >= self._due:
            self._due += self._every
        try:
            try:
                path = self._save()
            except ActorLost:
                # The process may have been lost earlier and only noticed now; by now it has been replaced.
                path = self._save()
        except (ActorLost, CheckpointFailed) as failure:
            where = f"checkpoint at {self._metrics.env_steps} env steps"
            self._budget.faulted(Fault(FaultKind.CHECKPOINTS_FAILED, where, str(failure), "", 0))
            self.failure = failure
            return
        self.failure = None
        log.info("checkpoint %s", path)
