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
from typing import Any

from marlflow.base.errors import ConfigInvalid, MarlflowError, RuntimeFailed, StageFailed
from marlflow.config.checks import check, machines_of, runtime_of
from marlflow.config.experiment import Experiment, RuntimeConfig
from marlflow.config.folders import existing_run_problems, folder_problems, new_folder
from marlflow.config.validation import CheckedExperiment
from marlflow.driver.checkpoint_notes import notes_of
from marlflow.driver.checkpointing import check_identity, kept_at, newest, only_process_in, passed_over
from marlflow.driver.graceful_shutdown import GracefulShutdown
from marlflow.driver.preamble import preamble
from marlflow.driver.recording import forget_recorded_after, recording
from marlflow.driver.relay import Relay
from marlflow.driver.reporting import metric
from marlflow.driver.run import Run
from marlflow.observe.console import DetachableConsole, RunConsole, console
from marlflow.observe.frames import frame
from marlflow.observe.report import PolicyInfo, Report, RunInfo
from marlflow.observe.run_log import logged_in
from marlflow.observe.sinks import METRICS
from marlflow.runtime.checkpoints import Checkpoint
from marlflow.runtime.protocol import Runtime

log = logging.getLogger("marlflow")

_FOLDER_NAME = "%Y-%m-%d_%H-%M-%S"


@dataclass(frozen=True, slots=True)
class Result:
    """How a run went: where it is, how it stood at its end, why it ended, and the figure a sweeper asked for.

    `metrics` is its last report, with the last evaluation of each policy, whichever report that stands in.
    """

    run_dir: Path
    metrics: Report
    stopped_by: str
    objective: float | None

    def frame(self) -> Any:
        """All reports as a pandas DataFrame: a row for each, columns such as `policies.prey.return_mean`.

        Raises InvalidInput if pandas is not installed, or the run wrote no reports (`log.jsonl`).
        """
        return frame(self.run_dir / METRICS)


def train(
    experiment: Experiment, run_dir: Path | str | None = None, *, files: Mapping[str, str] | None = None
) -> Result:
    """Trains until a stop condition holds. Raises InvalidInput, with every problem, before anything starts.

    Without a `run_dir` the run gets a new folder `runs/<name>/<time>`. `files` are text files to write there, by path.
    Nothing in an existing run's folder is changed. Raises what ended the run if it went wrong, once a checkpoint is
    taken where one can be.
    """
    return train_checked(check(experiment, machines=machines_of(experiment)), run_dir, files=files)


def train_checked(
    made: CheckedExperiment, run_dir: Path | str | None = None, *, files: Mapping[str, str] | None = None
) -> Result:
    """As `train`, of an experiment that was checked."""
    experiment = made.experiment
    named = Path("runs") / experiment.name / time.strftime(_FOLDER_NAME) if run_dir is None else Path(run_dir)
    problems = list(folder_problems("the run's directory", named))
    if run_dir is not None:
        problems += existing_run_problems(named)
    if problems:
        raise ConfigInvalid(problems)
    if run_dir is None:
        named = new_folder(named)
    named.mkdir(parents=True, exist_ok=True)
    return _go(made, runtime_of(experiment), named, None, files or {})


def resume(experiment: Experiment, run_dir: Path | str, *, files: Mapping[str, str] | None = None) -> Result:
    """Goes on from the newest whole checkpoint in `run_dir`, in that directory; otherwise as `train`.

    `experiment` is what was run there, perhaps with a longer stop, another placement or another number of workers.
    `files` are text files to write there, by path, once everything is restored. Raises CheckpointUnusable if nothing
    there is whole, or lists what makes it another run.
    """
    where = Path(run_dir)
    if not where.is_dir():
        raise ConfigInvalid([f"there is no directory {where}; resume needs that of a run"])
    return resume_checked(check(experiment, machines=machines_of(experiment)), where, files=files)


def resume_checked(made: CheckedExperiment, run_dir: Path, *, files: Mapping[str, str] | None = None) -> Result:
    """As `resume`, of an experiment that was checked."""
    checkpoint = newest(run_dir)
    check_identity(checkpoint, made)
    return _go(made, runtime_of(made.experiment), run_dir, checkpoint, files or {})


def _go(
    made: CheckedExperiment, runtime: Runtime, where: Path, checkpoint: Checkpoint | None, files: Mapping[str, str]
) -> Result:
    otherwise = "choose another directory for this run" if checkpoint is None else "wait for its end"
    with only_process_in(where, otherwise):
        # Again, for another process may have run here since: no file in the folder was changed until now.
        if checkpoint is None and (problems := list(existing_run_problems(where))):
            raise ConfigInvalid(problems)
        with logged_in(where):
            for text in preamble(made.experiment):
                log.info(text)
            try:
                return _go_alone(made, runtime, where, checkpoint, files)
            except MarlflowError as error:
                log.info("ended by %s: %s", type(error).__name__, error)
                raise


def _go_alone(
    made: CheckedExperiment, runtime: Runtime, where: Path, checkpoint: Checkpoint | None, files: Mapping[str, str]
) -> Result:
    experiment = made.experiment
    if checkpoint is None:
        _write(files, where)
    with ExitStack() as stack:
        run_name = secrets.token_hex(4) if checkpoint is None else notes_of(checkpoint).run
        recorded = recording(experiment, made.spec, made.players, where, run_name)
        if checkpoint is not None:
            forget_recorded_after(checkpoint, where, recorded)
        made = replace(made, spec=replace(made.spec, recording=recorded))
        shown, last_notices = DetachableConsole(console(experiment.log.console, run_info(made, where))), list[str]()
        stack.callback(_say, last_notices, shown)  # below the last state, where they stay
        stack.callback(shown.close)
        relay = Relay(experiment, shown.notice)
        interrupt = GracefulShutdown(experiment.stop.grace_period_s, shown.notice, relay.running)
        stack.enter_context(interrupt.listening())
        stack.callback(relay.close)
        stack.callback(runtime.close)
        starting = [f"starting {_processes(made)}", *_exposed(experiment.runtime)]
        _say([*_passed_over(checkpoint), *starting, *_rounds_too_long(made), *made.remarks], shown)
        run: Run | None = None
        with _says_if_lost(interrupt, where):
            try:
                run = Run(made, where, runtime, shown, relay, interrupt, run_name, checkpoint)
                stack.callback(run.reporting.close)
                if checkpoint is not None:
                    _write(files, where)  # not before: a resume that could not begin leaves them as they were
                interrupt.begin()
                run.run()
            except (StageFailed, KeyboardInterrupt) as ended:
                if _loss(interrupt, ended) is None:
                    if run is not None and isinstance(ended, StageFailed):
                        run.report_failure()
                    last_notices.append(_how_to_go_on(kept_at(where) if run is None else run.kept_at, where))
                raise
            if interrupt.asked or run.failure is not None:
                last_notices.append(_how_to_go_on(run.kept_at, where))
    return _result(run, made, where)


def _say(texts: Sequence[str], shown: RunConsole) -> None:
    for text in texts:
        shown.notice(text)


def _result(run: Run, made: CheckedExperiment, where: Path) -> Result:
    """The result of a run that has ended; raises what made it fail."""
    run.reporting.finish()
    log.info("stopped by %s; %s", run.stopped_by, run.reporting.overlaps(tuple(made.spec.learners)))
    if run.failure is not None:
        raise run.failure
    objective = made.experiment.objective
    return Result(where, run.last, run.stopped_by, None if objective is None else metric(run.last, objective))


def _exposed(runtime: RuntimeConfig) -> Iterator[str]:
    """Say that other machines reach the run's processes, if they do."""
    key = "node_ip_address" if runtime.address is None else "address"
    if runtime.name == "ray" and (where := getattr(runtime, key)) is not None:
        yield (
            f"runtime.{key}={where}: the run's processes listen on the network, and whoever reaches them with Ray's "
            "token can run code in them"
        )


def _write(files: Mapping[str, str], where: Path) -> None:
    for name, text in files.items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Replaced whole: a run that is killed meanwhile can still be resumed.
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)


def _passed_over(checkpoint: Checkpoint | None) -> Sequence[str]:
    """Says which newer checkpoints are not used; nothing for a run that begins."""
    notes = passed_over(checkpoint) if checkpoint is not None else []
    for text in notes:
        log.warning(text)
    return notes


@contextmanager
def _says_if_lost(interrupt: GracefulShutdown, where: Path) -> Iterator[None]:
    """Whatever came of losing the runtime itself, the one error that is raised says so, and how to go on."""
    try:
        yield
    except (MarlflowError, KeyboardInterrupt) as ended:
        if (loss := _loss(interrupt, ended)) is None:
            raise
        raise RuntimeFailed(f"{loss}\n{_how_to_go_on(kept_at(where), where)}") from None


def _loss(interrupt: GracefulShutdown, ended: BaseException) -> RuntimeFailed | None:
    """That the runtime itself was lost, if that is what has ended a run, or has come meanwhile."""
    causes = (interrupt.failure, ended, ended.__cause__)
    return next((one for one in causes if isinstance(one, RuntimeFailed)), None)


def _how_to_go_on(env_steps: int | None, where: Path) -> str:
    """`env_steps` are those of the last checkpoint, None if there is none."""
    if env_steps is None:
        return "there is no checkpoint to go on from"
    return f"to go on from {env_steps:,} env steps: marlflow resume {shlex.quote(str(where))}"


def _rounds_too_long(made: CheckedExperiment) -> Iterator[str]:
    round_env_steps, asked = made.spec.ticks * made.spec.num_envs, made.experiment.stop.env_steps
    if asked is not None and asked < round_env_steps:
        least = f"a round is {round_env_steps:,} env steps, and the least that a run takes"
        yield f"{least}; lower rollouts.fragment_env_steps for stop.env_steps={asked:,}"


def _processes(made: CheckedExperiment) -> str:
    there = [name for name, learner in made.spec.learners.items() if learner.on_workers]
    workers, learners = made.spec.num_workers, len(made.spec.learners) - len(there)
    beside = f" (where {', '.join(there)} learns)" if there else ""
    return f"{made.experiment.runtime.name}: rollout workers {workers}{beside}, learners {learners}"


def run_info(made: CheckedExperiment, run_dir: Path) -> RunInfo:
    """What does not change about the run."""
    learner_of = {policy: name for name, learner in made.spec.learners.items() for policy in learner.members}
    experiment, stop = made.experiment, made.experiment.stop
    conditions = {"env_steps": stop.env_steps, "time_s": stop.time_s}
    conditions |= {f"policies.{name}.return_mean": target for name, target in stop.policies.items()}
    return RunInfo(
        name=experiment.name,
        run_dir=run_dir,
        policies={
            name: PolicyInfo(policy.algorithm.name, tuple(made.players[name]), learner_of.get(name))
            for name, policy in made.spec.policies.items()
        },
        runtime=experiment.runtime.name,
        stop={name: value for name, value in conditions.items() if value is not None},
    )
