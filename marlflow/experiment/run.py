"""A run under way: what its plan asks of the driver, when it stops, and what is said and kept of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from marlflow.base.awaiting import begun
from marlflow.base.errors import ActorLost, CheckpointFailed, CheckpointUnusable, MarlflowError
from marlflow.base.items import Update, Weights
from marlflow.base.kept import Tree, differences_of_shape
from marlflow.experiment.evaluating import Evaluator
from marlflow.experiment.faults import OF_ENVIRONMENTS, BudgetedWorkers, FaultBudget
from marlflow.experiment.frozen import frozen_bytes, frozen_entries, frozen_file
from marlflow.experiment.interrupt import Interrupt
from marlflow.experiment.keeping import Keeper, not_resumed, usable
from marlflow.experiment.never_updated import why_never_updated
from marlflow.experiment.notes import notes_of
from marlflow.experiment.plans import Desk, build_plan
from marlflow.experiment.players import dealer_of
from marlflow.experiment.ready import Ready
from marlflow.experiment.records import Left
from marlflow.experiment.relay import Relay
from marlflow.experiment.reporting import Reporting, figure
from marlflow.experiment.scheduling import Scheduler
from marlflow.experiment.tally import Tally
from marlflow.experiment.time_limit import TimeLimit
from marlflow.experiment.waiting import Waiting
from marlflow.flow import Executor
from marlflow.observe.console import RunConsole
from marlflow.observe.record import MetricsRecord
from marlflow.rollout.fragment import Fault
from marlflow.rollout.kept import ResumeReport
from marlflow.rollout.matchups import DealtWorkers
from marlflow.rollout.protocol import FrozenPolicy, Request, Round
from marlflow.runtime.checkpoints import Checkpoint
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.spec import learner_of_replay

log = logging.getLogger("marlflow")


class Run:
    """A run named `name`, set up; `shown` is what a person sees of it. With a `checkpoint` it goes on from there."""

    def __init__(
        self,
        made: Ready,
        run_dir: Path,
        runtime: Runtime,
        shown: RunConsole,
        relay: Relay,
        interrupt: Interrupt,
        name: str,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._made, self._experiment, self._spec = made, made.experiment, made.spec
        self._runtime, self._console = runtime, shown
        self._interrupt = interrupt
        self.budget = FaultBudget(made.experiment.faults, shown.notice)
        self._tally = Tally(
            tuple(made.spec.policies), {n: one.members for n, one in made.spec.learners.items()}, made.agents
        )
        self._rounds, self._left = 0, Left(made.spec.records)
        self._due_log = made.experiment.log.every_env_steps
        self._due_checkpoint = None if made.experiment.checkpoint.every_env_steps is None else 0  # after a first round
        self._ended: set[str] = set()
        self._stopping: str | None = None
        self._going_home = False
        self._time_before_s = self._training_s = 0.0
        self._not_kept: MarlflowError | None = None
        self.stopped_by = ""
        self._keeper = Keeper(made, run_dir, runtime, name)
        parts = runtime.start(made.spec, self._lost, interrupt.fail, relay)
        self._dealer = dealer_of(made.experiment, made.seats)
        dealt = parts.workers if self._dealer is None else DealtWorkers(parts.workers, self._dealer, made.spec.ticks)
        self._parts = replace(parts, workers=BudgetedWorkers(dealt, self.budget))
        self._evaluator = Evaluator(
            made, self._parts.workers, self._tally, self.budget, self._published, self.report, self._say
        )
        self._time_limit = TimeLimit(made.experiment.stop, self._evaluator, runtime)
        self._scheduler = Scheduler(made.spec, self._parts)
        desk = Desk(self._next_request, lambda round: begun(self._round_made(round)))
        plan = build_plan(made.experiment, made.spec, self._parts, desk)
        self.reporting = Reporting(made.experiment, run_dir, shown, self._faulted)
        self._executor = Executor(plan, self._reported, (self.reporting,), self._between_rounds)
        self._began_s = time.perf_counter()
        if checkpoint is not None:
            self._go_on_from(checkpoint)
        self.reporting.begin(checkpoint, plan.mermaid())
        self.last: MetricsRecord = self._record()

    @property
    def failure(self) -> MarlflowError | None:
        """What is to be raised when the run has ended: a fault too many, or that its end could not be kept."""
        return self.budget.failure or self._not_kept

    @property
    def kept_at(self) -> int | None:
        """Env steps of the checkpoint that `marlflow resume` would go on from; None if there is none."""
        return self._keeper.kept_at

    def run(self) -> None:
        """Until a stop condition holds and everything under way has been used."""
        self._began_s = time.perf_counter() - self._time_before_s
        self._time_limit.limit_training(self._began_s)
        self._executor.run_sync()
        # When every plan has ended, so does their source, without asking for another round.
        self.stopped_by = self.stopped_by or self._stop_reason() or "the end of its experience"
        if self._has_news and not self.failure:
            self._keep()
        self._time_limit.limit_last_evaluation(self._began_s)
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
                self._say(why_never_updated(self._made, name, tally, self._sampled(name)))

    # -- what the plan asks of the driver -----------------------------------------------------------------------

    def _between_rounds(self) -> Callable[[], None] | None:
        """Whether the next round is to wait until a checkpoint is taken: when one is due, and before the end."""
        self._stopping = self._stop_reason()
        due = self._due_checkpoint is not None and self._tally.env_steps >= self._due_checkpoint
        self._going_home = self._has_news and (due or self._stopping is not None)
        return self._keep if self._going_home else None

    def _next_request(self) -> Request | Literal["home"] | None:
        if self._going_home:
            return "home"
        if self._stopping is not None:
            self.stopped_by = self._stopping
            self._console.notice(f"stopping: {self._stopping}")
            return None
        self._rounds += 1
        self._time_limit.limit_training(self._began_s)
        sampled = self._tally.agent_steps_sampled
        request = Request(self._rounds - 1, self._published(), self._scheduler.now(sampled))
        if self._dealer is not None:
            self._dealer.renew(request.weights, request.schedules, sampled)
        return request

    def _published(self) -> dict[str, Weights]:
        return self._parts.published()

    async def _round_made(self, round: Round) -> Round:
        self._training_s = time.perf_counter() - self._began_s - self._evaluator.spent_s
        self._tally.collected(round.receipts)
        self.budget.account([fault for receipt in round.receipts for fault in receipt.faults])
        self._end_learners()
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
            skipped = Fault("updates_skipped", f"learner {plan}", reason, "", 0)
            self.budget.spend(skipped, item.updates_skipped)

    def _lost(self, fault: Fault) -> None:
        """A process died, and has a successor."""
        self._faulted(fault)
        if fault.kind == "replays_lost":
            self._executor.starts_again(learner_of_replay(fault.where.removeprefix("replay ")))

    def _faulted(self, fault: Fault) -> None:
        """Counts what went wrong elsewhere than in a round or an evaluation."""
        self._tally.faulted([fault])
        self.budget.spend(fault)

    # -- when to stop -------------------------------------------------------------------------------------------

    def _stop_reason(self) -> str | None:
        stop = self._experiment.stop
        if self.budget.failure is not None:
            return "more faults than are allowed"
        if self._interrupt.asked is not None:
            return self._interrupt.asked
        if stop.env_steps is not None and self._tally.env_steps >= stop.env_steps:
            return f"stop.env_steps={stop.env_steps}"
        ends_s = self._time_limit.training_ends_s(self._began_s)
        if ends_s is not None and time.perf_counter() >= ends_s:
            return f"stop.time_s={stop.time_s:g}"
        reached = [self._has_reached(name, target) for name, target in stop.policies.items()]
        if reached and all(reached):
            return ", ".join(f"stop.policies.{name}.return_mean={target:g}" for name, target in stop.policies.items())
        if self._spec.learners and all(name in self._ended or self._has_read_all(name) for name in self._spec.learners):
            return "the end of what was recorded" if self._left.nothing_of else "every policy's own stop"
        return None

    def _has_reached(self, policy: str, target: float) -> bool:
        mean = self._tally.policies[policy].settled_return_mean
        return mean is not None and mean >= target

    def _end_learners(self) -> None:
        for name, learner in self._spec.learners.items():
            if name not in self._ended and (self._is_done(name) or self._has_read_all(name)):
                what = "enough" if self._end(name) else "all that was recorded"
                who = f"policy {name} has" if learner.members == (name,) else f"learner {name} has"
                self._console.notice(f"{who} learned {what}: its plan ends, it goes on acting")

    def _has_read_all(self, learner: str) -> bool:
        """Whether its policies have been given all rows that were recorded for them."""
        return self._left.nothing_of.issuperset(self._spec.learners[learner].members)

    def _end(self, name: str) -> bool:
        """What waits for a learner that has learned enough is dropped; if it is its records that ended, it is used."""
        self._ended.add(name)
        (self._executor.end_plan if (enough := self._is_done(name)) else self._executor.close_plan)(name)
        return enough

    def _sampled(self, learner: str) -> int:
        """The agent steps that its policies have sampled together."""
        return sum(self._tally.policies[name].agent_steps_sampled for name in self._spec.learners[learner].members)

    def _is_done(self, learner: str) -> bool:
        """Whether a learner's own stop holds."""
        stop = self._experiment.learner(learner).stop
        if stop.agent_steps is not None and self._sampled(learner) >= stop.agent_steps:
            return True
        members, target = self._spec.learners[learner].members, stop.return_mean
        return target is not None and all(self._has_reached(name, target) for name in members)

    # -- what is kept -------------------------------------------------------------------------------------------

    @property
    def _has_news(self) -> bool:
        """Whether there is something that the last checkpoint does not have."""
        return self._tally.env_steps not in (0, self._keeper.kept_at)

    def _keep(self) -> None:
        """A checkpoint; nothing is in flight. If there can be none, that is a fault, and the last one stands."""
        self._going_home = False
        every = self._experiment.checkpoint.every_env_steps
        while every is not None and self._due_checkpoint is not None and self._tally.env_steps >= self._due_checkpoint:
            self._due_checkpoint += every
        try:
            try:
                path = self._kept()
            except ActorLost:  # who was lost meanwhile, or before and nobody noticed, has a successor now
                path = self._kept()
        except (ActorLost, CheckpointFailed) as failure:
            fault = Fault("checkpoints_failed", f"checkpoint at {self._tally.env_steps} env steps", str(failure), "", 0)
            self._faulted(fault)
            self._not_kept = failure
            return
        self._not_kept = None
        log.info("checkpoint %s", path)

    def _kept(self) -> Path:
        self.reporting.sync()
        entries = {} if self._dealer is None else self._dealer.entries
        frozen = {frozen_file(n): partial(frozen_bytes, kept, self._parts.driver) for n, kept in entries.items()}
        return self._keeper.keep(self._tally.env_steps, self._state, frozen, self.reporting.lines, self._figure())

    def _figure(self) -> float | None:
        best = self._experiment.checkpoint.best
        return None if best is None else figure(self._record(), best)

    def _state(self, waiting: Waiting) -> Tree:
        """All that the driver knows."""
        matchups = {} if self._dealer is None else {"dealer": self._dealer.state()}
        return {
            "tally": self._tally.state(),
            "flow": self._executor.state(waiting.keep),
            "faults": dict(self.budget.spent),
            "rounds": self._rounds,
            "due": [self._due_log, self._evaluator.due_env_steps],
            "handed_out": self._left.state(),
            "ended": {name: asdict(self._experiment.learner(name).stop) for name in sorted(self._ended)},
            "times_s": [time.perf_counter() - self._began_s, self._training_s, self._evaluator.spent_s],
            **matchups,
        }

    def _go_on_from(self, checkpoint: Checkpoint) -> None:
        with usable(checkpoint):
            frozen = {} if self._dealer is None else frozen_entries(checkpoint, self._parts.driver)
        state, waiting, resumed = self._keeper.restore(checkpoint, frozen)
        with usable(checkpoint):
            if wrong := list(differences_of_shape(self._state(Waiting()), state)):
                raise CheckpointUnusable([f"what the driver knew is not of the shape that it has: {wrong[0]}"])
            self._load(state, waiting, frozen)
        self._resumed(checkpoint, resumed)

    def _load(self, state: Tree, waiting: Waiting, frozen: Mapping[str, FrozenPolicy]) -> None:
        """Goes on from what `_state` gave."""
        self._tally.load_state(state["tally"])
        self._executor.load_state(state["flow"], waiting.give_back)
        self.budget.spent |= state["faults"]
        self._rounds = state["rounds"]
        self._left.load_state(state["handed_out"])
        self._due_log, self._evaluator.due_env_steps = state["due"]
        self._time_before_s, self._training_s, self._evaluator.spent_s = state["times_s"]
        self._began_s = time.perf_counter() - self._time_before_s
        if (every := self._experiment.checkpoint.every_env_steps) is not None:
            self._due_checkpoint = self._tally.env_steps + every
        if self._dealer is not None:
            self._dealer.load_state(state["dealer"], frozen)
        for name, stop in state["ended"].items():
            if stop == asdict(self._experiment.learner(name).stop) or self._is_done(name):
                self._end(name)
            else:
                self._executor.rejoin(name)

    def _resumed(self, checkpoint: Checkpoint, resumed: ResumeReport) -> None:
        """Counts and says what could not be taken up again."""
        self._tally.faults["episodes_abandoned"] += resumed.episodes_abandoned
        self._tally.faults["episodes_restarted"] += resumed.episodes_restarted
        self._tally.faults["rows_lost"] += resumed.rows_lost
        said = [f"going on from {checkpoint.path}, {self._tally.env_steps:,} env steps", *not_resumed(resumed)]
        for name in dict.fromkeys(map(learner_of_replay, self._parts.replays)):
            if notes_of(checkpoint).replay == "none":
                said.append(f"the replay of {name} begins empty, since checkpoint.replay was none")
                self._executor.starts_again(name)
        for text in said:
            self._say(text)

    # -- what is said -------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        log.info(text)
        self._console.notice(text)

    def _record(self) -> MetricsRecord:
        time_s = time.perf_counter() - self._began_s
        stages, store_bytes = self._executor.meters(), self._runtime.object_store_bytes()
        schedules = self._scheduler.values(self._tally.agent_steps_sampled)
        return self._tally.record(time_s, self._training_s, stages, self._published(), store_bytes, schedules)

    def _report_if_due(self) -> None:
        if self._tally.env_steps >= self._due_log:
            self._due_log += self._experiment.log.every_env_steps
            self.report()

    def report_failure(self) -> None:
        """Reports the run as a failed stage has left it, with faults that no receipt has; only if there is anything."""
        self._tally.faults |= {kind: self.budget.spent[kind] for kind in OF_ENVIRONMENTS}
        if self._tally.env_steps or any(self._tally.faults.values()):
            self.report()

    def report(self) -> None:
        """Tells the files and the console how the run stands; `last` has what earlier reports said of evaluations."""
        self.last = self._record()
        news = self._tally.news(self.last)
        self._tally.reported(self._training_s)
        self.reporting.report(news)
