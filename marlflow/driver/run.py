"""A run under way: sets its parts up, runs its plan, and connects both to reports, faults and checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from marlflow.base.awaiting import begun
from marlflow.base.errors import CheckpointUnusable, MarlflowError
from marlflow.base.fault_kind import FaultKind
from marlflow.base.items import Update, Weights
from marlflow.base.serialization import Tree, differences_of_shape
from marlflow.config.plans import RoundHooks, build_plan
from marlflow.config.policy_assignment import dealer_of
from marlflow.config.validation import CheckedExperiment
from marlflow.driver.checkpoint_notes import notes_of
from marlflow.driver.checkpoint_timing import CheckpointTiming
from marlflow.driver.checkpointing import Checkpointer, not_resumed, usable
from marlflow.driver.evaluation import Evaluator
from marlflow.driver.faults import BudgetedWorkers, FaultBudget
from marlflow.driver.frozen_policies import frozen_bytes, frozen_entries, frozen_file
from marlflow.driver.graceful_shutdown import GracefulShutdown
from marlflow.driver.never_updated import why_never_updated
from marlflow.driver.queued_items import QueuedItems
from marlflow.driver.recording import DatasetProgress
from marlflow.driver.relay import Relay
from marlflow.driver.reporting import Reporting, metric
from marlflow.driver.round_hooks import BetweenRounds, Requests
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.stop_conditions import StopConditions
from marlflow.driver.time_limit import RunClock, TimeLimit
from marlflow.flow import Executor
from marlflow.observe.console import RunConsole
from marlflow.observe.report import Report
from marlflow.runtime.checkpoints import Checkpoint
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.spec import learner_of_replay
from marlflow.sampling.matchmaking import DealtWorkers
from marlflow.sampling.protocol import FrozenPolicy, Round
from marlflow.sampling.receipts import Fault
from marlflow.sampling.saved_state import ResumeReport

log = logging.getLogger("marlflow")


class Run:
    """A run named `name`, set up; `shown` is what a person sees of it. With a `checkpoint` it goes on from there."""

    def __init__(
        self,
        made: CheckedExperiment,
        run_dir: Path,
        runtime: Runtime,
        shown: RunConsole,
        relay: Relay,
        interrupt: GracefulShutdown,
        name: str,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._made, self._experiment, self._spec = made, made.experiment, made.spec
        self._runtime, self._console = runtime, shown
        self._interrupt = interrupt
        self.budget = FaultBudget(made.experiment.faults, shown.notice)
        self._tally = RunMetrics(
            tuple(made.spec.policies), {n: one.members for n, one in made.spec.learners.items()}, made.agents
        )
        self._left = DatasetProgress(made.spec.records)
        self._due_log = made.experiment.log.every_env_steps
        self._clock = RunClock()
        self.stopped_by = ""
        self._keeper = Checkpointer(made, run_dir, runtime, name)
        parts = runtime.start(made.spec, self._lost, interrupt.fail, relay)
        self._dealer = dealer_of(made.experiment, made.seats)
        dealt = parts.workers if self._dealer is None else DealtWorkers(parts.workers, self._dealer, made.spec.ticks)
        self._parts = replace(parts, workers=BudgetedWorkers(dealt, self.budget))
        self._evaluator = Evaluator(
            made, self._parts.workers, self._tally, self.budget, self._published, self.report, self._say
        )
        self._time_limit = TimeLimit(made.experiment.stop, self._clock, self._evaluator, runtime)
        self._scheduler = Scheduler(made.spec, self._parts)
        self._stops = StopConditions(
            made.experiment, made.spec, self._tally, self._left, self.budget, interrupt, self._time_limit
        )
        every_env_steps = made.experiment.checkpoint.every_env_steps
        self._checkpoints = CheckpointTiming(every_env_steps, self._tally, self._keeper, self._save, self._faulted)
        self._requests = Requests(self._published, self._scheduler, self._dealer, self._tally, self._time_limit)
        self._between = BetweenRounds(self._stops, self._checkpoints, self._requests, shown.notice)
        desk = RoundHooks(self._between.next_request, lambda round: begun(self._round_made(round)))
        plan = build_plan(made.experiment, made.spec, self._parts, desk)
        self.reporting = Reporting(made.experiment, run_dir, shown, self._faulted)
        self._executor = Executor(plan, self._reported, (self.reporting,), self._between.checkpoint_if_due)
        self._clock.begin()
        if checkpoint is not None:
            self._go_on_from(checkpoint)
        self.reporting.begin(checkpoint, plan.mermaid())
        self.last: Report = self._record()

    @property
    def failure(self) -> MarlflowError | None:
        """What is to be raised when the run has ended: a fault too many, or that its end could not be kept."""
        return self.budget.failure or self._checkpoints.failure

    @property
    def kept_at(self) -> int | None:
        """Env steps of the checkpoint that `marlflow resume` would go on from; None if there is none."""
        return self._keeper.kept_at

    def run(self) -> None:
        """Until a stop condition holds and everything under way has been used."""
        self._clock.begin()
        self._time_limit.limit_training()
        self._executor.run_sync()
        # When every plan has ended, so does their source, without asking for another round.
        self.stopped_by = self._between.stopped_by or self._stops.reason() or "the end of its experience"
        if self._checkpoints.has_news and not self.failure:
            self._checkpoints.take()
        self._time_limit.limit_last_evaluation()
        if not self._interrupt.asked and self.budget.failure is None:
            self._evaluator.at_the_end()
        self.stopped_by = self._interrupt.asked or self.stopped_by  # also if it came when the run was ending
        self.report()
        if faults := self._runtime.close_environments():  # everything is kept: they can do no harm
            for fault in faults:
                self._faulted(fault)
            self.report()
        for name, tally in self._tally.learners.items():
            if tally.updates == 0:
                self._say(why_never_updated(self._made, name, tally, self._tally.agent_steps_sampled_for(name)))

    # -- what the plan asks of the driver -----------------------------------------------------------------------

    def _published(self) -> dict[str, Weights]:
        return self._parts.published()

    async def _round_made(self, round: Round) -> Round:
        self._clock.training_s = self._clock.elapsed_s - self._evaluator.spent_s
        self._tally.collected(round.receipts)
        self.budget.account([fault for receipt in round.receipts for fault in receipt.faults])
        self._stops.end_learners(self._executor, self._console.notice)
        self._left.handed(round.receipts)
        await self._evaluator.after_round(round.receipts)
        self._report_if_due()
        return round

    def _reported(self, plan: str, item: Any) -> None:
        if not isinstance(item, Update):
            return
        self._tally.learners[plan].updated(item)
        if item.updates_skipped:
            reason = "its gradient was not finite, so there was no step; lower the learning rate, or scale the rewards"
            skipped = Fault(FaultKind.UPDATES_SKIPPED, f"learner {plan}", reason, "", 0)
            self.budget.spend(skipped, item.updates_skipped)

    def _lost(self, fault: Fault) -> None:
        """A process died, and has a successor."""
        self._faulted(fault)
        if fault.kind is FaultKind.REPLAYS_LOST:
            self._executor.reapply_starts(learner_of_replay(fault.replay))

    def _faulted(self, fault: Fault) -> None:
        """Counts what went wrong elsewhere than in a round or an evaluation."""
        self._tally.faulted([fault])
        self.budget.spend(fault)

    # -- what is kept -------------------------------------------------------------------------------------------

    def _save(self) -> Path:
        self.reporting.sync()
        entries = {} if self._dealer is None else self._dealer.entries
        frozen = {frozen_file(n): partial(frozen_bytes, kept, self._parts.driver) for n, kept in entries.items()}
        return self._keeper.keep(self._tally.env_steps, self._state, frozen, self.reporting.lines, self._figure())

    def _figure(self) -> float | None:
        best = self._experiment.checkpoint.best
        return None if best is None else metric(self._record(), best)

    def _state(self, waiting: QueuedItems) -> Tree:
        """All that the driver knows."""
        matchups = {} if self._dealer is None else {"dealer": self._dealer.state()}
        return {
            "tally": self._tally.state(),
            "flow": self._executor.state(waiting.keep),
            "faults": self.budget.state(),
            "rounds": self._requests.rounds,
            "due": [self._due_log, self._evaluator.due_env_steps],
            "handed_out": self._left.state(),
            "ended": self._stops.state(),
            "times_s": [self._clock.elapsed_s, self._clock.training_s, self._evaluator.spent_s],
            **matchups,
        }

    def _go_on_from(self, checkpoint: Checkpoint) -> None:
        with usable(checkpoint):
            frozen = {} if self._dealer is None else frozen_entries(checkpoint, self._parts.driver)
        state, waiting, resumed = self._keeper.restore(checkpoint, frozen)
        with usable(checkpoint):
            if wrong := list(differences_of_shape(self._state(QueuedItems()), state)):
                raise CheckpointUnusable([f"what the driver knew is not of the shape that it has: {wrong[0]}"])
            self._load(state, waiting, frozen)
        self._resumed(checkpoint, resumed)

    def _load(self, state: Tree, waiting: QueuedItems, frozen: Mapping[str, FrozenPolicy]) -> None:
        """Goes on from what `_state` gave."""
        self._tally.load_state(state["tally"])
        self._executor.load_state(state["flow"], waiting.give_back)
        self.budget.load_state(state["faults"])
        self._requests.rounds = state["rounds"]
        self._left.load_state(state["handed_out"])
        self._due_log, self._evaluator.due_env_steps = state["due"]
        elapsed_s, training_s, self._evaluator.spent_s = state["times_s"]
        self._clock.resume(elapsed_s, training_s)
        self._checkpoints.resume()
        if self._dealer is not None:
            self._dealer.load_state(state["dealer"], frozen)
        self._stops.load_state(state["ended"], self._executor)

    def _resumed(self, checkpoint: Checkpoint, resumed: ResumeReport) -> None:
        """Counts and says what could not be taken up again."""
        self._tally.faults["episodes_abandoned"] += resumed.episodes_abandoned
        self._tally.faults["episodes_restarted"] += resumed.episodes_restarted
        self._tally.faults["rows_lost"] += resumed.rows_lost
        said = [f"going on from {checkpoint.path}, {self._tally.env_steps:,} env steps", *not_resumed(resumed)]
        for name in dict.fromkeys(map(learner_of_replay, self._parts.replays)):
            if notes_of(checkpoint).replay == "none":
                said.append(f"the replay of {name} begins empty, since checkpoint.replay was none")
                self._executor.reapply_starts(name)
        for text in said:
            self._say(text)

    # -- what is said -------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        log.info(text)
        self._console.notice(text)

    def _record(self) -> Report:
        stages, store_bytes = self._executor.meters(), self._runtime.object_store_bytes()
        schedules = self._scheduler.values(self._tally.agent_steps_sampled)
        return self._tally.record(
            self._clock.elapsed_s, self._clock.training_s, stages, self._published(), store_bytes, schedules
        )

    def _report_if_due(self) -> None:
        if self._tally.env_steps >= self._due_log:
            self._due_log += self._experiment.log.every_env_steps
            self.report()

    def report_failure(self) -> None:
        """Reports the run as a failed stage has left it, with faults that no receipt has; only if there is anything."""
        self._tally.faults |= {kind.value: self.budget.spent[kind] for kind in FaultKind if kind.of_environment}
        if self._tally.env_steps or any(self._tally.faults.values()):
            self.report()

    def report(self) -> None:
        """Tells the files and the console how the run stands; `last` has what earlier reports said of evaluations."""
        self.last = self._record()
        news = self._tally.news(self.last)
        self._tally.reported(self._clock.training_s)
        self.reporting.report(news)
