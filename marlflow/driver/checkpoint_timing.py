"""When a run takes a checkpoint, and what it does if one cannot be written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from marlflow.base.errors import ActorLost, CheckpointFailed, MarlflowError
from marlflow.base.fault_kind import FaultKind
from marlflow.driver.checkpointing import Checkpointer
from marlflow.driver.run_metrics import RunMetrics
from marlflow.sampling.receipts import Fault

log = logging.getLogger("marlflow")


class CheckpointTiming:
    """Takes checkpoints with `save`: one after the first round, then one every `every_env_steps`; None: at the end.

    `faulted` is told of each checkpoint that could not be written. `failure` is why the last attempt failed, or None.
    """

    def __init__(
        self,
        every_env_steps: int | None,
        tally: RunMetrics,
        keeper: Checkpointer,
        save: Callable[[], Path],
        faulted: Callable[[Fault], None],
    ) -> None:
        self._every, self._tally, self._keeper = every_env_steps, tally, keeper
        self._save, self._faulted = save, faulted
        self._due = 0  # after the first round
        self.failure: MarlflowError | None = None

    @property
    def has_news(self) -> bool:
        """Whether there are env steps that the last checkpoint does not have."""
        return self._tally.env_steps not in (0, self._keeper.kept_at)

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is to be taken after this round."""
        return self._every is not None and self._tally.env_steps >= self._due

    def resume(self) -> None:
        """The run resumed from a checkpoint: the next one is due after `every_env_steps` more."""
        if self._every is not None:
            self._due = self._tally.env_steps + self._every

    def take(self) -> None:
        """Takes a checkpoint while nothing is in flight. A failure is a fault, and the last checkpoint stays valid."""
        while self._every is not None and self._tally.env_steps >= self._due:
            self._due += self._every
        try:
            try:
                path = self._save()
            except ActorLost:  # the lost process, perhaps lost before and not noticed, has a successor by now
                path = self._save()
        except (ActorLost, CheckpointFailed) as failure:
            where = f"checkpoint at {self._tally.env_steps} env steps"
            self._faulted(Fault(FaultKind.CHECKPOINTS_FAILED, where, str(failure), "", 0))
            self.failure = failure
            return
        self.failure = None
        log.info("checkpoint %s", path)
