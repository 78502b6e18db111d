"""Runs an experiment, or goes on with one: checks it, sets its parts up, and says how it went."""

from __future__ import annotations

import logging
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from marlflow.base.errors import ConfigInvalid, MarlflowError, RuntimeFailed, StageFailed
from marlflow.experiment.experiment import Experiment
from marlflow.experiment.folders import folder_problems
from marlflow.experiment.interrupt import Interrupt
from marlflow.experiment.keeping import check_identity, kept_at, newest, only_process_in, passed_over
from marlflow.experiment.notes import notes_of
from marlflow.experiment.plans import drawn_plan
from marlflow.experiment.ready import Ready, problems_of
from marlflow.experiment.records import forget_recorded_after, recording
from marlflow.experiment.relay import Relay
from marlflow.experiment.reporting import figure
from marlflow.experiment.run import Run
from marlflow.observe.console import DetachableConsole, console
from marlflow.observe.record import MetricsRecord, PolicyInfo, RunInfo
from marlflow.runtime.checkpoints import Checkpoint
from marlflow.runtime.protocol import Runtime

log = logging.getLogger("marlflow")


@dataclass(frozen=True, slots=True)
class Result:
    """How a run went: where it is, its last report, why it ended, and the figure a sweeper asked for."""

    run_dir: Path
    metrics: MetricsRecord
    stopped_by: str
    objective: float | None


def train(experiment: Experiment, run_dir: Path | str | None = None) -> Result:
    """Trains until a stop condition holds. Raises InvalidInput, with every problem, before anything starts.

    Raises what ended the run if it went wrong, once a checkpoint is taken where one can be.
    """
    made, runtime = check(experiment, available=available_to(experiment)), runtime_of(experiment)
    where = Path(run_dir) if run_dir is not None else Path("runs") / experiment.name / time.strftime("%Y%m%d_%H%M%S")
    if any((where / name).exists() for name in ("checkpoints", "metrics.jsonl")):
        raise ConfigInvalid([f"there is a run in {where} already; go on with it (resume), or choose another directory"])
    if problems := list(folder_problems("the run's directory", where)):
        raise ConfigInvalid(problems)
    where.mkdir(parents=True, exist_ok=True)
    return _go(made, runtime, where, None)


def resume(experiment: Experiment, run_dir: Path | str) -> Result:
    """Goes on from the newest whole checkpoint in `run_dir`, in that directory; otherwise as `train`.

    `experiment` is what was run there, perhaps with a longer stop, another placement or another number of workers.
    Raises CheckpointUnusable if nothing there is whole, or lists what makes it another run.
    """
    where = Path(run_dir)
    if not where.is_dir():
        raise ConfigInvalid([f"there is no directory {where}; resume needs that of a run"])
    made, runtime = check(experiment, available=available_to(experiment)), runtime_of(experiment)
    checkpoint = newest(where)
    check_identity(checkpoint, made)
    for text in (notes := passed_over(checkpoint)):
        log.warning(text)
    return _go(made, runtime, where, checkpoint, notes)


def check(
    experiment: Experiment | None, found: Sequence[str] = (), available: Mapping[str, float] | None = None
) -> Ready:
    """Everything that can be known to be wrong before a run starts, for every command that runs one or shows it.

    `found` is what was wrong with the configuration that the experiment was read from; it is None if that says no
    environment. `available` are the resources that the run will find, from `available_to`; None, as when a plan is
    drawn for another machine, leaves them unchecked. Raises InvalidInput with all problems.
    """
    made, problems = None, list(found)
    if experiment is not None:
        made, more = problems_of(experiment, available)
        problems += more
    if made is None or problems:
        raise ConfigInvalid(problems)
    drawn_plan(made.experiment, made.spec).check()
    return made


def available_to(experiment: Experiment | None) -> Mapping[str, float] | None:
    """The resources that this machine, or the cluster that Ray has joined, has for a run; None if that is not known."""
    return None if experiment is None else runtime_of(experiment).available()


def _go(made: Ready, runtime: Runtime, where: Path, checkpoint: Checkpoint | None, notes: Sequence[str] = ()) -> Result:
    experiment = made.experiment
    with ExitStack() as stack:
        stack.enter_context(only_process_in(where))
        run_name = secrets.token_hex(4) if checkpoint is None else notes_of(checkpoint).run
        recorded = recording(experiment, made.spec, made.players, where, run_name)
        if checkpoint is not None:
            forget_recorded_after(checkpoint, where, recorded)
        made = replace(made, spec=replace(made.spec, recording=recorded))
        shown = DetachableConsole(console(experiment.log.console, run_info(made, where)))
        stack.callback(shown.close)
        relay = Relay(experiment, shown.notice)
        interrupt = Interrupt(experiment.stop.grace_s, shown.notice, relay.running)
        stack.enter_context(interrupt.listening())
        stack.callback(relay.close)
        stack.callback(runtime.close)
        for text in (*notes, f"starting {_processes(made)}", *_rounds_too_long(made), *made.remarks):
            shown.notice(text)
        with _says_if_lost(interrupt, where):
            run = Run(made, where, runtime, shown, relay, interrupt, run_name, checkpoint)
            stack.callback(run.reporting.close)
            interrupt.begin()
            try:
                run.run()
            except (StageFailed, KeyboardInterrupt) as ended:
                if _loss(interrupt, ended) is None:
                    if isinstance(ended, StageFailed):
                        run.report()
                    shown.notice(_how_to_go_on(run.kept_at, where))
                raise
            if interrupt.asked or run.failure is not None:
                shown.notice(_how_to_go_on(run.kept_at, where))
    run.reporting.finish()
    log.info("stopped by %s; %s", run.stopped_by, run.reporting.overlaps(made.spec.learning))
    if run.failure is not None:
        raise run.failure
    objective = experiment.objective
    return Result(where, run.last, run.stopped_by, None if objective is None else figure(run.last, objective))


@contextmanager
def _says_if_lost(interrupt: Interrupt, where: Path) -> Iterator[None]:
    """Whatever came of losing the runtime itself, the one error that is raised says so, and how to go on."""
    try:
        yield
    except (MarlflowError, KeyboardInterrupt) as ended:
        if (loss := _loss(interrupt, ended)) is None:
            raise
        raise RuntimeFailed(f"{loss}\n{_how_to_go_on(kept_at(where), where)}") from None


def _loss(interrupt: Interrupt, ended: BaseException) -> RuntimeFailed | None:
    """That the runtime itself was lost, if that is what has ended a run, or has come meanwhile."""
    causes = (interrupt.failure, ended, ended.__cause__)
    return next((one for one in causes if isinstance(one, RuntimeFailed)), None)


def _how_to_go_on(env_steps: int | None, where: Path) -> str:
    """`env_steps` are those of the last checkpoint, None if there is none."""
    if env_steps is None:
        return "there is no checkpoint to go on from"
    return f"to go on from {env_steps:,} env steps: marlflow resume {shlex.quote(str(where))}"


def _rounds_too_long(made: Ready) -> Iterator[str]:
    round_env_steps, asked = made.spec.ticks * made.spec.copies, made.experiment.stop.env_steps
    if asked is not None and asked < round_env_steps:
        least = f"a round is {round_env_steps:,} env steps, and the least that a run takes"
        yield f"{least}; lower rollouts.fragment_env_steps for stop.env_steps={asked:,}"


def runtime_of(experiment: Experiment) -> Runtime:
    """The runtime that the experiment chose; Ray is imported only if it is asked for."""
    if experiment.runtime.name == "inline":
        from marlflow.runtime.inline import InlineRuntime

        return InlineRuntime()
    from marlflow.runtime.ray import RayRuntime

    return RayRuntime(experiment.runtime.address, object_store_bytes=experiment.runtime.object_store_bytes)


def _processes(made: Ready) -> str:
    there = made.spec.learning_on_workers
    workers, learners = made.spec.num_workers, len(made.spec.learning) - len(there)
    beside = f" (where {', '.join(there)} learns)" if there else ""
    return f"{made.experiment.runtime.name}: rollout workers {workers}{beside}, learners {learners}"


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
