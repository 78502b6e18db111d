"""Notices of a run: what learners and compilers say, where a resumed run begins, and who has not learned."""

from __future__ import annotations

import logging

from marlflow.batches.items import Update
from marlflow.config.checked import CheckedExperiment
from marlflow.driver.never_updated import why_never_updated
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service
from marlflow.observe.console import RunConsole
from marlflow.runs.checkpoints import Checkpoint
from marlflow.sampling.protocol import Round
from marlflow.sampling.saved_state import ResumeReport

log = logging.getLogger("marlflow")


class Notices(Service):
    """Writes notices to the console and the log."""

    def __init__(self, checked: CheckedExperiment, metrics: RunMetrics, console: RunConsole) -> None:
        self._checked, self._metrics, self._console = checked, metrics, console
        # Learners with an update that was ended early, each of which is reported once.
        self._cut: set[str] = set()

    def notify(self, text: str) -> None:
        """Write a notice."""
        log.info(text)
        self._console.notice(text)

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        self.notify(f"resuming from {checkpoint.path}, {self._metrics.env_steps:,} env steps")
        if report.episodes_abandoned:
            self.notify(
                f"{report.episodes_abandoned} running episodes differed when they were replayed and were discarded"
            )
        if report.episodes_restarted:
            self.notify(f"{report.episodes_restarted} running episodes were too long to be replayed and start again")

    async def after_round(self, round: Round) -> None:
        for note in {receipt.compiled.note for receipt in round.receipts} - {""}:
            self.notify(note)

    def updated(self, learner: str, update: Update) -> None:
        if update.note:
            self.notify(f"learner {learner}: {update.note}")
        if update.minibatches_left and learner not in self._cut:
            self._cut.add(learner)
            self.notify(
                f"an update of learner {learner} was ended after {update.updates:,} optimizer steps, since the run "
                f"ends: the rest of its rows, {update.minibatches_left:,} minibatches, is not learned from"
            )

    def close(self) -> None:
        for name, totals in self._metrics.learners.items():
            if totals.updates == 0:
                sampled = self._metrics.agent_steps_sampled
                count = sum(sampled[policy] for policy in self._checked.spec.learners[name].learns_from)
                self.notify(why_never_updated(self._checked, name, totals, count))
