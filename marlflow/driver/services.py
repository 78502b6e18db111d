"""The services of a run: how each is made, and the order of their calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from marlflow.base.awaiting import begun
from marlflow.base.errors import FaultKind
from marlflow.batches.items import Inserted, Update
from marlflow.config.checked import CheckedExperiment
from marlflow.config.league import dealer_of, is_meta_game, store_of
from marlflow.config.plans import RoundHooks, build_plan, with_league
from marlflow.driver.checkpointing import Checkpointer, CheckpointTiming
from marlflow.driver.evaluation import Evaluator
from marlflow.driver.faults import BudgetedWorkers, FaultBudget
from marlflow.driver.graceful_shutdown import GracefulShutdown
from marlflow.driver.league import Dealing, LearnerResets, MatchTimes, with_matches
from marlflow.driver.nash_conv import NashConvEvaluator
from marlflow.driver.notices import Notices
from marlflow.driver.policy_changes import PolicyChanges
from marlflow.driver.recording import DatasetProgress
from marlflow.driver.relay import Relay
from marlflow.driver.reporting import Reporting, ReportTiming
from marlflow.driver.round_hooks import BetweenRounds
from marlflow.driver.run_metrics import metrics_of
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.service import Service
from marlflow.driver.stop_conditions import RunClock, StopConditions, TimeLimit
from marlflow.driver.stored_members import StoredMembers
from marlflow.flow import Executor
from marlflow.matchmaking.dealer import DealtWorkers
from marlflow.observe.console import RunConsole
from marlflow.observe.report import RunInfo
from marlflow.replay.protocol import learner_of_replay
from marlflow.runtime.protocol import RunComponents, Runtime
from marlflow.sampling.protocol import Drain, Request, Round, Workers
from marlflow.sampling.receipts import Fault


class RunServices:
    """A run's processes, started; the executor of its plan; and its services, made from the checked experiment.

    `by_name` has the services in the order of their calls, by the names of their states in checkpoints. The other
    attributes are services that the run itself uses. `report` writes a report, `save` a checkpoint, and `rating` is the
    metric that one would have.
    """

    def __init__(
        self,
        checked: CheckedExperiment,
        info: RunInfo,
        runtime: Runtime,
        console: RunConsole,
        relay: Relay,
        shutdown: GracefulShutdown,
        report: Callable[[], None],
        save: Callable[[], Path],
        rating: Callable[[], float | None],
    ) -> None:
        self._checked, self._info, self._runtime, self._console = checked, info, runtime, console
        self._report, self._save, self._rating = report, save, rating
        self.metrics = metrics_of(checked)
        self.budget = FaultBudget(checked.experiment.faults, self.metrics, console.notice)
        self.reporting = Reporting(checked.experiment, info, console, self.budget.faulted, self.metrics)
        self.budget.observe = self.reporting.callbacks.fault
        self.checkpointer = Checkpointer(checked, info.run_dir, runtime, info.id)
        parts = runtime.start(checked.spec, self._lost, shutdown.fail, relay)
        if parts.dashboard_url is not None:
            console.notice(f"Ray's dashboard: {parts.dashboard_url}")
        self.published = parts.published
        self.members = StoredMembers(info.run_dir, parts.driver, store_of(checked.experiment).memory_bytes)
        self._dealer, self._match_times = dealer_of(checked, self.members), MatchTimes()
        parts = replace(parts, workers=self._workers(parts))
        hooks = RoundHooks(self._next_request, lambda round: begun(self._round_made(round)))
        self.plan = with_league(build_plan(checked.experiment, checked.spec, parts, hooks), checked)
        self.executor = Executor(self.plan, self._updated, (self.reporting,), self._before_round, self._stored)
        self._make(parts, shutdown)

    def _workers(self, parts: RunComponents) -> Workers:
        """Return the workers of a run as its plan has them: they deal, play matches, and keep to the fault budget."""
        workers, league = parts.workers, self._checked.experiment.league
        if self._dealer is not None:
            workers = DealtWorkers(workers, self._dealer, self._checked.spec.ticks)
            waits = league is None or is_meta_game(league)
            workers = with_matches(workers, parts.referees, self._dealer, waits, self.budget, self._match_times)
        return BudgetedWorkers(workers, self.budget)

    def _make(self, parts: RunComponents, shutdown: GracefulShutdown) -> None:
        """Make all services, each from the services that it needs; they are called in the order of the table."""
        checked, experiment, spec = self._checked, self._checked.experiment, self._checked.spec
        metrics, budget, executor, callbacks = self.metrics, self.budget, self.executor, self.reporting.callbacks
        notices, progress = Notices(checked, metrics, self._console, parts.published), DatasetProgress(spec.records)
        notice = self._console.notice
        self.clock = clock = RunClock(lambda: evaluator.spent_s + self._match_times.total_s + nash_conv.spent_s)
        evaluator = Evaluator(
            checked, parts, metrics, budget, callbacks, self._report, notices.notify, lambda: clock.elapsed_s
        )
        nash_conv = NashConvEvaluator(checked, self._dealer, self.members, parts, metrics)
        time_limit = TimeLimit(experiment.stop, clock, evaluator, self._runtime, shutdown)
        scheduler = Scheduler(spec, parts, metrics)
        resets = LearnerResets(spec, self._runtime, executor, self.members, scheduler, notices.notify)
        changes = PolicyChanges(spec, self._runtime, executor, scheduler, callbacks, notices.notify)
        stops = StopConditions(
            checked, metrics, progress, budget, shutdown, time_limit, callbacks, executor, notice, self._info.run_dir
        )
        self.checkpoints = checkpoints = CheckpointTiming(
            experiment.checkpoint, metrics, self.checkpointer, self._save, budget, self._rating
        )
        self.between_rounds = BetweenRounds(
            parts.published, scheduler, self._dealer, metrics, time_limit, stops, checkpoints, resets, changes, notice
        )
        dealing = None if self._dealer is None else Dealing(self._dealer, metrics, self._match_times, nash_conv)
        services: dict[str, Service | None] = {
            # First: the time of the services below counts for the next round, or is excluded.
            "clock": clock,
            # Before all services that read the totals, which must include the round.
            "tally": metrics,
            "schedules": scheduler,
            "reporting": self.reporting,
            "faults": budget,
            # Before the progress of datasets: a plan ends in the round after the one that read the end of its dataset.
            "ended": stops,
            "handed_out": progress,
            "notices": notices,
            "resets": resets,
            "changes": changes,
            "rounds": self.between_rounds,
            "evaluation": evaluator,
            "nash_conv": nash_conv,
            # After evaluations, so that the report has them.
            "reports": ReportTiming(experiment.log.every_env_steps, metrics, self._report),
            "matches": self._match_times,
            "dealer": dealing,
            # The last checkpoint is written before the deadline of the last evaluation is set.
            "checkpoints": checkpoints,
            "time_limit": time_limit,
            # Last, because a callback that fails in `state` is a fault, which the states above must not contain.
            "callbacks": callbacks,
        }
        self.by_name = {name: service for name, service in services.items() if service is not None}

    # -- calls of the plan and the runtime ----------------------------------------------------------------------

    def _before_round(self) -> Callable[[], None] | None:
        return self.between_rounds.before_round()

    def _next_request(self) -> Request | Drain | None:
        return self.between_rounds.next_request()

    async def _round_made(self, round: Round) -> Round:
        for service in self.by_name.values():
            await service.after_round(round)
        return round

    def _updated(self, plan: str, item: Any) -> None:
        if isinstance(item, Update):
            for service in self.by_name.values():
                service.updated(plan, item)

    def _stored(self, plan: str, item: Any) -> None:
        if isinstance(item, Inserted):
            self.metrics.learners[plan].seats_left_early += item.seats_left_early
        self._updated(plan, item)  # of loss groups that a flow of their own trains

    def _lost(self, fault: Fault) -> None:
        self.budget.faulted(fault)
        # The new replay is empty, so its learner waits again until `starts` rows are in it.
        if fault.kind is FaultKind.REPLAYS_LOST:
            self.executor.reapply_starts(learner_of_replay(fault.replay), fault.replay)
