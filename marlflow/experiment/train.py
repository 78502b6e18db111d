"""Runs an experiment: sets its parts up, runs its plan until a stop condition holds, and says how it went."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Awaitable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from marlflow.base.errors import EnvironmentFailed, StageFailed
from marlflow.base.items import Update, Weights
from marlflow.experiment.experiment import Experiment
from marlflow.experiment.faults import BudgetedWorkers
from marlflow.experiment.interrupt import Interrupt
from marlflow.experiment.plans import Desk, build_plan, drawn_plan
from marlflow.experiment.ready import Ready, ready
from marlflow.experiment.tally import Tally
from marlflow.flow import Executor, Plan, StageId, StageTimes, source
from marlflow.observe.console import RunConsole, console
from marlflow.observe.curves import draw_learning_curves
from marlflow.observe.record import MetricsRecord, PolicyInfo, RunInfo
from marlflow.observe.sinks import JsonlSink, Sink, TensorBoardSink
from marlflow.observe.trace import Trace
from marlflow.rollout.fragment import Evaluated
from marlflow.rollout.matchups import Dealer, DealtWorkers
from marlflow.rollout.protocol import Request, Round, Workers
from marlflow.runtime.protocol import Parts, Runtime

log = logging.getLogger("marlflow")

INTERRUPTED = "interrupted"
"""What a run says it was stopped by, if it was by a signal."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run went: where it is, its last report, why it ended, and the figure a sweeper asked for."""

    run_dir: Path
    metrics: MetricsRecord
    stopped_by: str
    objective: float | None


def train(experiment: Experiment, run_dir: Path | str | None = None) -> Result:
    """Trains until a stop condition holds. Raises InvalidInput, with every problem, before anything starts."""
    runtime = runtime_of(experiment)
    made = ready(experiment, runtime.available())
    drawn_plan(made.experiment, made.spec).check()
    where = Path(run_dir) if run_dir is not None else Path("runs") / experiment.name / time.strftime("%Y%m%d_%H%M%S")
    where.mkdir(parents=True, exist_ok=True)
    shown = console(experiment.log.console, run_info(made, where))
    with ExitStack() as stack:
        stack.callback(shown.close)
        stack.callback(runtime.close)
        shown.notice(f"starting {_processes(made)}")
        round_env_steps, asked = made.spec.ticks * made.spec.copies, experiment.stop.env_steps
        if asked is not None and asked < round_env_steps:
            least = f"a round is {round_env_steps:,} env steps, and the least that a run takes"
            shown.notice(f"{least}; lower rollouts.fragment_env_steps for stop.env_steps={asked:,}")
        run = _Run(made, where, runtime.start(made.spec), shown)
        stack.enter_context(run.interrupt.listening())
        stack.callback(run.close)
        try:
            run.run()
        except StageFailed as failure:
            if isinstance(failure.__cause__, EnvironmentFailed):  # what was learned is not to blame
                run.report()
                run.keep(runtime)
            raise
        run.keep(runtime)
    run.finish()
    return Result(where, run.last, run.stopped_by, _objective(experiment, run.last))


def runtime_of(experiment: Experiment) -> Runtime:
    """The runtime that the experiment chose; Ray is imported only if it is asked for."""
    if experiment.runtime.name == "inline":
        from marlflow.runtime.inline import InlineRuntime

        return InlineRuntime()
    from marlflow.runtime.ray import RayRuntime

    return RayRuntime(experiment.runtime.address)


class _Run:
    """A run under way."""

    def __init__(self, made: Ready, run_dir: Path, parts: Parts, shown: RunConsole) -> None:
        self._workers = _directed(made, parts.workers, shown)
        self._parts = parts = replace(parts, workers=self._workers)
        self._experiment, self._spec, self._run_dir = made.experiment, made.spec, run_dir
        self.interrupt = Interrupt(made.experiment.stop.grace_s, shown.notice)
        self._tally = Tally(tuple(made.spec.policies), made.agents)
        self._trace = Trace()
        plan = build_plan(made.experiment, made.spec, parts, Desk(self._next_request, self._round_made))
        (run_dir / "plan.mmd").write_text(plan.mermaid())
        self._executor = Executor(plan, self._reported, hooks=(self,))
        self._console = shown
        self._files = _files(made.experiment, run_dir)
        self._rounds = 0
        self._due_log = made.experiment.log.every_env_steps
        self._due_evaluation = 0
        self._ended: set[str] = set()
        self._began_s = time.perf_counter()
        self._training_s = self._evaluating_s = 0.0
        self.stopped_by = ""
        self.last: MetricsRecord = self._record()

    def run(self) -> None:
        """Until a stop condition holds and everything under way has been used."""
        self._began_s = time.perf_counter()
        self._executor.run_sync()
        # When every plan has ended, so does their source, without asking for another round.
        self.stopped_by = self.stopped_by or self._stop_reason() or "the end of its experience"
        if self._experiment.evaluation.episodes and not self.interrupt.asked:
            self._evaluate_at_the_end()
        self.report()
        for name in self._spec.learning:
            if self._tally.policies[name].updates == 0:
                sampled = self._tally.policies[name].agent_steps_sampled
                self._console.notice(f"policy {name} was never updated: {sampled:,} agent steps were too few for it")

    def _evaluate_at_the_end(self) -> None:
        """What the policies came to, greedily: a plan of one stage and one item."""
        left = [range(self._experiment.evaluation.episodes)]

        def evaluate() -> Evaluated | Awaitable[Evaluated]:
            if not left:
                raise StopIteration
            return self._workers.evaluate(left.pop(), self._published())

        plan = Plan("evaluation", source(evaluate, name="Evaluate"))
        Executor(plan, lambda _, results: self._evaluated(results, time.perf_counter())).run_sync()

    # -- what the plan asks of the driver -----------------------------------------------------------------------

    def _next_request(self) -> Request | None:
        if (reason := self._stop_reason()) is not None:
            self.stopped_by = reason
            self._console.notice(f"stopping: {reason}")
            return None
        schedules = {
            name: dict(self._spec.policies[name].algorithm.schedules(self._tally.policies[name].agent_steps_sampled))
            for name in self._spec.learning
        }
        self._rounds += 1
        return Request(self._rounds - 1, self._published(), schedules)

    def _published(self) -> dict[str, Weights]:
        return {name: learner.published for name, learner in self._parts.learners.items()}

    def _round_made(self, round: Round) -> Round | Awaitable[Round]:
        began_s = time.perf_counter()
        self._training_s = began_s - self._began_s - self._evaluating_s
        self._tally.collected(round.receipts)
        self._workers.account([fault for receipt in round.receipts for fault in receipt.faults])
        self._end_policies()
        evaluation = self._experiment.evaluation
        if evaluation.episodes and self._tally.env_steps >= self._due_evaluation:
            self._due_evaluation += evaluation.every_env_steps
            results = self._workers.evaluate(range(evaluation.episodes), self._published())
            if isinstance(results, Awaitable):
                return self._after_evaluation(round, results, began_s)
            self._evaluated(results, began_s)
        self._report_if_due()
        return round

    async def _after_evaluation(self, round: Round, results: Awaitable[Evaluated], began_s: float) -> Round:
        self._evaluated(await results, began_s)
        self._report_if_due()
        return round

    def _evaluated(self, results: Evaluated, began_s: float) -> None:
        self._tally.evaluated(results)
        self._evaluating_s += time.perf_counter() - began_s
        self._workers.account(results.faults)

    def _reported(self, plan: str, item: Any) -> None:
        if isinstance(item, Update):
            self._tally.policies[plan].updated(item)

    # -- when to stop -------------------------------------------------------------------------------------------

    def _stop_reason(self) -> str | None:
        stop = self._experiment.stop
        if self.interrupt.asked:
            return INTERRUPTED
        if stop.env_steps is not None and self._tally.env_steps >= stop.env_steps:
            return f"stop.env_steps={stop.env_steps}"
        if stop.time_s is not None and time.perf_counter() - self._began_s >= stop.time_s:
            return f"stop.time_s={stop.time_s:g}"
        reached = [self._has_reached(name, target) for name, target in stop.policies.items()]
        if reached and all(reached):
            return ", ".join(f"stop.policies.{name}.return_mean={target:g}" for name, target in stop.policies.items())
        if self._spec.learning and self._ended == set(self._spec.learning):
            return "every policy's own stop"
        return None

    def _has_reached(self, policy: str, target: float) -> bool:
        mean = self._tally.policies[policy].settled_return_mean
        return mean is not None and mean >= target

    def _end_policies(self) -> None:
        for name in self._spec.learning:
            policy = self._experiment.policies.get(name, self._experiment.default_policy)
            limit, target = policy.stop.agent_steps, policy.stop.return_mean
            sampled = self._tally.policies[name].agent_steps_sampled
            done = (limit is not None and sampled >= limit) or (target is not None and self._has_reached(name, target))
            if done and name not in self._ended:
                self._ended.add(name)
                self._executor.end_plan(name)
                self._console.notice(f"policy {name} has learned enough: its plan ends, it goes on acting")

    # -- what is kept and said ----------------------------------------------------------------------------------

    def before(self, stage: StageId, items: int) -> None:
        """Of the executor's hook; nothing is done."""

    def after(self, stage: StageId, items: int, times: StageTimes) -> None:
        """Keeps when each stage was busy."""
        if times.ended_s > times.began_s:
            self._trace.add(stage.plan, stage.stage, times.began_s, times.ended_s)

    def _record(self) -> MetricsRecord:
        time_s = time.perf_counter() - self._began_s
        return self._tally.record(time_s, self._training_s, self._executor.meters(), self._published())

    def _report_if_due(self) -> None:
        if self._tally.env_steps >= self._due_log:
            self._due_log += self._experiment.log.every_env_steps
            self.report()

    def report(self) -> None:
        """Tells the files and the console how the run stands."""
        self.last = self._record()
        for sink in (*self._files, self._console):
            sink.report(self.last)

    def keep(self, runtime: Runtime) -> None:
        """Writes each learner's parameters into the run directory."""
        folder = self._run_dir / "checkpoints" / str(self._tally.env_steps)
        folder.mkdir(parents=True, exist_ok=True)
        for name in self._spec.learning:
            state = runtime.learner_state(name)
            save_file(dict(state.tensors), folder / f"{name}.safetensors", {"numbers": json.dumps(state.numbers)})

    def finish(self) -> None:
        """Draws what the run left."""
        if self._experiment.log.trace:
            self._trace.write(self._run_dir / "trace.json")
        if self._experiment.log.jsonl:
            curves = self._run_dir / "learning_curves.png"
            draw_learning_curves(self._run_dir / "metrics.jsonl", curves, self._experiment.name)
        log.info("stopped by %s; %s", self.stopped_by, self.overlaps())

    def overlaps(self) -> str:
        """How long each two learners were busy at once, in words."""
        names, said = self._spec.learning, []
        for position, first in enumerate(names):
            for second in names[position + 1 :]:
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


def _directed(made: Ready, workers: Workers, shown: RunConsole) -> BudgetedWorkers:
    """The workers with what the driver does for them: it deals matchups, and watches over faults."""
    experiment, matchmaker = made.experiment, made.experiment.mapping
    if callable(matchmaker):
        # A copy: an experiment is data, and the same run may be asked for again.
        dealer = Dealer(copy.deepcopy(matchmaker), made.seats, experiment.env.copies, experiment.seed)
        workers = DealtWorkers(workers, dealer, made.spec.ticks)
    return BudgetedWorkers(workers, experiment.faults, shown.notice)


def _processes(made: Ready) -> str:
    workers, learners = made.spec.num_workers, len(made.spec.learning)
    return f"{made.experiment.runtime.name}: rollout workers {workers}, learners {learners}"


def run_info(made: Ready, run_dir: Path) -> RunInfo:
    """What does not change about the run."""
    experiment, stop = made.experiment, made.experiment.stop
    conditions = {"env_steps": stop.env_steps, "time_s": stop.time_s}
    conditions |= {f"policies.{name}.return_mean": target for name, target in stop.policies.items()}
    return RunInfo(
        name=experiment.name,
        run_dir=run_dir,
        policies={
            name: PolicyInfo(policy.algorithm.name, tuple(made.players[name]))
            for name, policy in made.spec.policies.items()
        },
        runtime=experiment.runtime.name,
        stop={name: value for name, value in conditions.items() if value is not None},
    )


def _files(experiment: Experiment, run_dir: Path) -> list[Sink]:
    sinks: list[Sink] = []
    if experiment.log.jsonl:
        sinks.append(JsonlSink(run_dir / "metrics.jsonl"))
    if experiment.log.tensorboard:
        sinks.append(TensorBoardSink(run_dir))
    return sinks


def _objective(experiment: Experiment, record: Mapping[str, Any]) -> float | None:
    """The figure at the dotted path `objective` in the last report."""
    if experiment.objective is None:
        return None
    value: Any = record
    for part in experiment.objective.split("."):
        value = value[part]
    return value  # type: ignore[no-any-return]  # validated when the experiment was
