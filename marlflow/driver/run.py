"""A run: starts its processes, executes its plan, and handles reports, faults and checkpoints."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from marlflow.base.awaiting import begun
from marlflow.base.errors import CheckpointUnusable, MarlflowError
from marlflow.base.fault_kind import FaultKind
from marlflow.base.items import Inserted, Update
from marlflow.base.serialization import Tree, differences_of_shape
from marlflow.config.checked import CheckedExperiment
from marlflow.config.dealers import dealer_of, store_of
from marlflow.config.drawn_league import with_league
from marlflow.config.league import is_meta_game
from marlflow.config.plans import RoundHooks, build_plan
from marlflow.driver.checkpoint_timing import CheckpointTiming
from marlflow.driver.checkpointing import Checkpointer, resume_notices
from marlflow.driver.evaluation import Evaluator
from marlflow.driver.faults import BudgetedWorkers, FaultBudget
from marlflow.driver.graceful_shutdown import GracefulShutdown
from marlflow.driver.league_metrics import league_metrics
from marlflow.driver.matches import MatchTimes, with_matches
from marlflow.driver.nash_conv import MemberWeights, NashConvEvaluator
from marlflow.driver.never_updated import why_never_updated
from marlflow.driver.queued_items import QueuedItems
from marlflow.driver.recording import DatasetProgress
from marlflow.driver.relay import Relay
from marlflow.driver.reporting import Reporting
from marlflow.driver.resets import LearnerResets
from marlflow.driver.round_hooks import BetweenRounds, Requests
from marlflow.driver.run_metrics import metrics_of
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.stop_conditions import StopConditions
from marlflow.driver.stored_members import StoredMembers
from marlflow.driver.time_limit import RunClock, TimeLimit
from marlflow.flow import Executor, Together
from marlflow.observe.console import RunConsole
from marlflow.observe.report import Report, RunInfo, metric
from marlflow.replay.shards import learner_of_replay
from marlflow.runtime.checkpoint_notes import notes_of
from marlflow.runtime.checkpoints import Checkpoint
from marlflow.runtime.frozen_policies import frozen_file
from marlflow.runtime.protocol import RunComponents, Runtime
from marlflow.runtime.saved_runs import usable
from marlflow.sampling.dealer import Dealer, DealtWorkers
from marlflow.sampling.population import Reset
from marlflow.sampling.protocol import Round
from marlflow.sampling.receipts import Fault
from marlflow.sampling.saved_state import ResumeReport

log = logging.getLogger("marlflow")


class Run:
    """A run, resumed from `checkpoint` if there is one.

    `last` is the last report, `stopped_by` the reason why the run ended.
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
        self._checked, self._experiment, self._spec = checked, checked.experiment, checked.spec
        self._runtime = runtime
        self._console = console
        self._shutdown = shutdown
        self.stopped_by = ""
        self.budget = FaultBudget(checked.experiment.faults, console.notice)
        self.reporting = Reporting(checked.experiment, info, console, self._faulted)
        self.budget.observe = self.reporting.callbacks.fault
        self._metrics = metrics_of(checked)
        self._progress = DatasetProgress(checked.spec.records)
        self._due_log = checked.experiment.log.every_env_steps
        self._clock = RunClock()
        self._checkpointer = Checkpointer(checked, info.run_dir, runtime, info.id)
        self._dealer: Dealer | None = None
        # Learners with an update that was ended early, each of which is reported once.
        self._cut: set[str] = set()
        self._match_times = MatchTimes()
        self._parts = self._start(relay, info.run_dir)
        self._create_evaluators()
        self._scheduler = Scheduler(checked.spec, self._parts)
        self._resets = LearnerResets(checked.spec, runtime, self._scheduler, self._notify)
        self._create_hooks()
        plan = self._plan()
        self._executor = Executor(plan, self._reported, (self.reporting,), self._hooks.before_round, self._stored)
        self._clock.begin()
        if checkpoint is not None:
            self._resume_from(checkpoint)
        self.reporting.begin(checkpoint, plan, self._executor.held)
        self.last: Report = self._current_report()

    def _start(self, relay: Relay, run_dir: Path) -> RunComponents:
        parts = self._runtime.start(self._spec, self._lost, self._shutdown.fail, relay)
        if parts.dashboard_url is not None:
            self._console.notice(f"Ray's dashboard: {parts.dashboard_url}")
        self._members = StoredMembers(run_dir, parts.driver, store_of(self._experiment).memory_bytes)
        self._dealer = dealer_of(self._checked, self._members)
        workers = parts.workers
        if self._dealer is not None:
            workers = DealtWorkers(workers, self._dealer, self._spec.ticks)
            waits = (league := self._experiment.league) is None or is_meta_game(league)
            workers = with_matches(workers, parts.referees, self._dealer, waits, self.budget, self._match_times)
        return replace(parts, workers=BudgetedWorkers(workers, self.budget))

    def _create_evaluators(self) -> None:
        self._evaluator = Evaluator(
            self._checked,
            self._parts.workers,
            self._metrics,
            self.budget,
            self._parts.published,
            self.report,
            self._notify,
            self.reporting.callbacks.evaluated,
            lambda: self._clock.elapsed_s,
        )
        self._nash_conv = NashConvEvaluator(self._checked, self._dealer, self._weights_of)

    def _create_hooks(self) -> None:
        self._time_limit = TimeLimit(self._experiment.stop, self._clock, self._evaluator, self._runtime)
        self._stops = StopConditions(
            self._experiment,
            self._spec,
            self._metrics,
            self._progress,
            self.budget,
            self._shutdown,
            self._time_limit,
            self.reporting.callbacks,
        )
        every = self._experiment.checkpoint.every_env_steps
        self._checkpoints = CheckpointTiming(every, self._metrics, self._checkpointer, self._save, self._faulted)
        self._requests = Requests(self._parts.published, self._scheduler, self._dealer, self._metrics, self._time_limit)
        self._hooks = BetweenRounds(
            self._stops, self._checkpoints, self._requests, self._reset_learner, self._console.notice
        )

    def _plan(self) -> Together:
        hooks = RoundHooks(self._hooks.next_request, lambda round: begun(self._round_made(round)))
        return with_league(build_plan(self._experiment, self._spec, self._parts, hooks), self._checked)

    @property
    def failure(self) -> MarlflowError | None:
        """The error to raise at the end: too many faults, or a failed last checkpoint."""
        return self.budget.failure or self._checkpoints.failure

    @property
    def saved_at(self) -> int | None:
        return self._checkpointer.saved_at

    def run(self) -> None:
        """Train until a stop condition holds, then save, evaluate and report."""
        self._clock.begin()
        self._time_limit.limit_training()
        self._executor.run_sync()
        # The source also ends, without another request, once every plan has ended.
        self.stopped_by = self._hooks.stopped_by or self._stops.reason() or "the end of its experience"
        if self._checkpoints.has_news and not self.failure:
            self._checkpoints.take()
        self._time_limit.limit_last_evaluation()
        if not self._shutdown.requested and self.budget.failure is None:
            self._evaluator.at_the_end()
            self._nash_conv.compute(self._metrics.env_steps)
        # A signal may also have come while the run was ending.
        self.stopped_by = self._shutdown.requested or self.stopped_by
        self.report()
        # Closed last: an environment that hangs or crashes here can no longer harm what is saved.
        if faults := self._runtime.close_environments():
            for fault in faults:
                self._faulted(fault)
            self.report()
        for name, totals in self._metrics.learners.items():
            if totals.updates == 0:
                sampled = self._metrics.agent_steps_sampled
                count = sum(sampled[policy] for policy in self._spec.learners[name].learns_from)
                self._notify(why_never_updated(self._checked, name, totals, count))

    # -- callbacks of the plan ----------------------------------------------------------------------------------

    def _weights_of(self, member: str) -> MemberWeights:
        """Return the present parameters of a member of the league, on the driver."""
        frozen = self._members.get(member)
        weights = self._parts.published().get(member) if frozen is None else frozen.weights
        flat = None if weights is None else self._parts.driver.fetch(weights.flat)
        return MemberWeights(flat, {} if frozen is None else frozen.scheduled)

    async def _round_made(self, round: Round) -> Round:
        # Evaluations and matches are excluded, so that env_steps_per_s is the speed of training.
        evaluated_s = self._evaluator.spent_s + self._match_times.total_s + self._nash_conv.metrics.spent_s
        self._clock.training_s = self._clock.elapsed_s - evaluated_s
        self._metrics.collected(round.receipts)
        self._scheduler.send_costs(self._metrics.cost_totals)
        self.reporting.collected(round)
        self.budget.account([fault for receipt in round.receipts for fault in receipt.faults])
        self._stops.end_learners(self._executor, self._console.notice)
        self._progress.count(round.receipts)
        for note in {receipt.compiled.note for receipt in round.receipts} - {""}:
            self._notify(note)
        await self._evaluator.after_round(round.receipts)
        self._nash_conv.after_round(self._metrics.env_steps)
        self._report_if_due()
        return round

    def _reset_learner(self, reset: Reset) -> None:
        self._resets.reset_learner(reset, self._members, self._metrics.agent_steps_sampled, self._executor)

    def _reported(self, plan: str, item: Any) -> None:
        if not isinstance(item, Update):
            return
        self._metrics.learners[plan].updated(item)
        if item.note:
            self._notify(f"learner {plan}: {item.note}")
        if item.minibatches_left and plan not in self._cut:
            self._cut.add(plan)
            self._notify(_cut_phrase(plan, item))
        if item.updates_skipped:
            reason = "its gradient was not finite, so there was no step; lower the learning rate, or scale the rewards"
            skipped = Fault(FaultKind.UPDATES_SKIPPED, f"learner {plan}", reason, "", 0)
            self.budget.spend(skipped, item.updates_skipped)

    def _stored(self, plan: str, item: Any) -> None:
        if isinstance(item, Inserted):
            self._metrics.learners[plan].seats_left_early += item.seats_left_early
        self._reported(plan, item)  # of loss groups that a flow of their own trains

    def _lost(self, fault: Fault) -> None:
        self._faulted(fault)
        # The new replay is empty, so its learner waits again until `starts` rows are in it.
        if fault.kind is FaultKind.REPLAYS_LOST:
            self._executor.reapply_starts(learner_of_replay(fault.replay))

    def _faulted(self, fault: Fault) -> None:
        self._metrics.faulted([fault])
        self.budget.spend(fault)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def _save(self) -> Path:
        frozen = {frozen_file(entry): content for entry, content in self._members.contents().items()}
        at, metric = self._metrics.env_steps, self._checkpoint_metric()
        return self.reporting.save(at, lambda lines: self._checkpointer.save(at, self._state, frozen, lines, metric))

    def _checkpoint_metric(self) -> float | None:
        best = self._experiment.checkpoint.best
        return None if best is None else metric(self._current_report(), best)

    def _state(self, queued: QueuedItems) -> Tree:
        matchups = {} if self._dealer is None else {"dealer": self._dealer.state()}
        return {
            "tally": self._metrics.state(),
            "flow": self._executor.state(queued.to_tree),
            "faults": self.budget.state(),
            "rounds": self._requests.rounds,
            "resets": self._resets.state(),
            "schedules": self._scheduler.state(),
            "due": [self._due_log, self._evaluator.due_env_steps],
            "handed_out": self._progress.state(),
            "ended": self._stops.state(),
            "callbacks": self.reporting.callbacks.state(),
            "times_s": [self._clock.elapsed_s, self._clock.training_s, self._evaluator.spent_s],
            "match_times_s": [self._match_times.match_s, self._match_times.solve_s, self._nash_conv.metrics.spent_s],
            "nash_conv": self._nash_conv.metrics.state(),
            **matchups,
        }

    def _resume_from(self, checkpoint: Checkpoint) -> None:
        if self._dealer is not None:
            with usable(checkpoint):
                self._members.restore(checkpoint)
        state, queued, report = self._checkpointer.restore(checkpoint, self._members)
        with usable(checkpoint):
            # Validated before anything is loaded: a checkpoint is untrusted input.
            if differences := list(differences_of_shape(self._state(QueuedItems()), state)):
                raise CheckpointUnusable([f"what the driver knew is not of the shape that it has: {differences[0]}"])
            self._load(state, queued)
        self._report_resume(checkpoint, report)

    def _load(self, state: Tree, queued: QueuedItems) -> None:
        self._metrics.load_state(state["tally"])
        self._executor.load_state(state["flow"], queued.from_tree)
        self.budget.load_state(state["faults"])
        self._requests.rounds = state["rounds"]
        self._resets.load_state(state["resets"])
        self._scheduler.load_state(state["schedules"])
        self._scheduler.send_costs(self._metrics.cost_totals)
        self._progress.load_state(state["handed_out"])
        self._due_log, self._evaluator.due_env_steps = state["due"]
        elapsed_s, training_s, self._evaluator.spent_s = state["times_s"]
        self._match_times.match_s, self._match_times.solve_s, self._nash_conv.metrics.spent_s = state["match_times_s"]
        self._nash_conv.metrics.load_state(state["nash_conv"])
        self._clock.resume(elapsed_s, training_s)
        self._checkpoints.resume()
        if self._dealer is not None:
            self._dealer.load_state(state["dealer"])
        self._stops.load_state(state["ended"], self._executor)
        self.reporting.callbacks.load_state(state["callbacks"])

    def _report_resume(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        self._metrics.faults["episodes_abandoned"] += report.episodes_abandoned
        self._metrics.faults["episodes_restarted"] += report.episodes_restarted
        self._metrics.faults["rows_lost"] += report.rows_lost
        notices = [f"resuming from {checkpoint.path}, {self._metrics.env_steps:,} env steps", *resume_notices(report)]
        for name in dict.fromkeys(map(learner_of_replay, self._parts.replays)):
            if notes_of(checkpoint).replay == "none":
                notices.append(f"the replay of {name} begins empty, since checkpoint.replay was none")
                self._executor.reapply_starts(name)
        for text in notices:
            self._notify(text)

    # -- reports ------------------------------------------------------------------------------------------------

    def _notify(self, text: str) -> None:
        log.info(text)
        self._console.notice(text)

    def _current_report(self) -> Report:
        times_s, stages = (self._clock.elapsed_s, self._clock.training_s), self._executor.meters()  # at one instant
        store_bytes = self._runtime.object_store_bytes()
        schedules = self._scheduler.values(self._metrics.agent_steps_sampled)
        report = self._metrics.report(*times_s, stages, self._parts.published(), store_bytes, schedules)
        nash_conv = self._nash_conv.metrics
        if (league := league_metrics(self._dealer, self._metrics.sent, self._match_times, nash_conv)) is not None:
            report["league"] = league
        return report

    def _report_if_due(self) -> None:
        if self._metrics.env_steps >= self._due_log:
            self._due_log += self._experiment.log.every_env_steps
            self.report()

    def close(self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        """End the callbacks, with the error that the run raises, if any."""
        self.reporting.close(self.stopped_by, self.last, error or self.failure)

    def report_failure(self) -> None:
        """Report the totals after a stage has failed, if there are any."""
        self._metrics.faults |= {kind.value: self.budget.spent[kind] for kind in FaultKind if kind.of_environment}
        if self._metrics.env_steps or any(self._metrics.faults.values()):
            self.report()

    def report(self) -> None:
        """Write a report."""
        self.last = self._current_report()
        # `last` keeps evaluations that earlier reports have; the files get each evaluation once.
        new_report = self._metrics.without_old_evaluations(self.last)
        self._metrics.reported(self._clock.training_s)
        self.reporting.report(new_report)


def _cut_phrase(learner: str, update: Update) -> str:
    return (
        f"an update of learner {learner} was ended after {update.updates:,} optimizer steps, since the run ends: the "
        f"rest of its rows, {update.minibatches_left:,} minibatches, is not learned from"
    )
