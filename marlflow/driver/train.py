"""Train an experiment, or resume a run."""

from __future__ import annotations

import json
import logging
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid, InvalidInput, MarlflowError, RuntimeFailed
from marlflow.base.files import replacing
from marlflow.base.public_names import with_current_names
from marlflow.checks.commands import check, machines_of, refuse_others, runtime_of
from marlflow.config.checked import CheckedExperiment
from marlflow.config.description import changes, plain
from marlflow.config.experiment import Experiment, RuntimeConfig
from marlflow.config.folders import check_resumed, existing_run_problems, folder_problems, new_folder
from marlflow.config.placement import cluster_address, cluster_setting
from marlflow.config.recorded import record, unrecorded
from marlflow.config.settings import changeable_settings
from marlflow.driver.checkpointing import check_identity, only_process_in, saved_at
from marlflow.driver.graceful_shutdown import REASONS, GracefulShutdown
from marlflow.driver.notices import preamble
from marlflow.driver.other_runs import with_saved_members
from marlflow.driver.recording import forget_recorded_after, recording
from marlflow.driver.relay import Relay
from marlflow.driver.run import Run
from marlflow.driver.stop_conditions import updates_finish_s
from marlflow.observe.console import DetachableConsole, RunConsole, console
from marlflow.observe.report import PolicyInfo, Report, RunInfo, metric
from marlflow.observe.run_log import logged_in
from marlflow.observe.sinks import METRICS, frame
from marlflow.runs.checkpoint_format import notes_of
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runs.run_state import reason_of, write_state
from marlflow.runs.saved_runs import EXPERIMENT, newest, skipped
from marlflow.runtime.protocol import Runtime

log = logging.getLogger("marlflow")

_FOLDER_NAME = "%Y-%m-%d_%H-%M-%S"
_MOST_CHANGES = 20


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run.

    `metrics` is the last report, which has the last evaluation of each policy. `stopped_by` is why the run ended.
    `objective` is the metric that a sweep optimizes.
    """

    run_dir: Path
    metrics: Report
    stopped_by: str
    objective: float | None

    def frame(self) -> Any:
        """Return all reports as a pandas DataFrame, with columns such as `policies.prey.return_mean`.

        Raises InvalidInput if pandas is not installed, or the run wrote no `metrics.jsonl` (`log.jsonl`).
        """
        return frame(self.run_dir / METRICS)


def train(
    experiment: Experiment, run_dir: Path | str | None = None, *, files: Mapping[str, str] | None = None
) -> Result:
    """Train until a stop condition holds.

    The default `run_dir` is a new folder `runs/<name>/<time>`. `files` maps paths in it to texts to write. Raises
    InvalidInput, with every problem, before anything is written. Errors of the run are raised after a last checkpoint,
    where one can be taken.
    """
    return train_checked(check(experiment, machines=machines_of(experiment)), run_dir, files=files)


def train_checked(
    checked: CheckedExperiment, run_dir: Path | str | None = None, *, files: Mapping[str, str] | None = None
) -> Result:
    """Train an experiment that was checked; see `train`."""
    experiment = checked.experiment
    is_new = run_dir is None
    from marlflow.config.named_environments import default_run_name

    env, name = experiment.env, experiment.name
    if name == Experiment.name:
        name = default_run_name(env.factory, env.arguments) or name
    folder = Path("runs") / name / time.strftime(_FOLDER_NAME) if run_dir is None else Path(run_dir)
    problems = list(folder_problems("the run's directory", folder))
    if not is_new:
        problems += existing_run_problems(folder)
    if problems:
        raise ConfigInvalid(problems)
    if is_new:
        folder = new_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return _run_exclusively(checked, runtime_of(experiment), folder, None, files or {})


def resume(experiment: Experiment, run_dir: Path | str, *, files: Mapping[str, str] | None = None) -> Result:
    """Resume the run in `run_dir` from its newest valid checkpoint; otherwise as `train`.

    `experiment` may have other stop conditions, placement and number of workers. `files` are written once everything is
    restored. Raises CheckpointUnusable without a valid checkpoint, or with every other difference.
    """
    refuse_others(experiment)
    folder = Path(run_dir)
    if not folder.is_dir():
        raise ConfigInvalid([f"there is no directory {folder}; resume needs that of a run"])
    check_resumed(folder)
    experiment = with_saved_members(experiment, folder)
    return resume_checked(check(experiment, machines=machines_of(experiment)), folder, files=files)


def resume_checked(checked: CheckedExperiment, run_dir: Path, *, files: Mapping[str, str] | None = None) -> Result:
    """Resume with an experiment that was checked; see `resume`."""
    checkpoint = newest(run_dir)
    check_identity(checkpoint, checked)
    return _run_exclusively(checked, runtime_of(checked.experiment), run_dir, checkpoint, files or {})


def _run_exclusively(
    checked: CheckedExperiment, runtime: Runtime, run_dir: Path, checkpoint: Checkpoint | None, files: Mapping[str, str]
) -> Result:
    otherwise = "choose another directory for this run" if checkpoint is None else "wait for its end"
    with only_process_in(run_dir, otherwise):
        # Checked again under the lock: another process may have run here since the first check.
        if checkpoint is None and (problems := list(existing_run_problems(run_dir))):
            raise ConfigInvalid(problems)
        with logged_in(run_dir), _state_written(run_dir) as state:
            for text in preamble(checked.experiment):
                log.info(text)
            try:
                result = _run(checked, runtime, run_dir, checkpoint, files, state)
            except MarlflowError as error:
                log.info("ended by %s: %s", type(error).__name__, error)
                raise
            state.stopped_by = result.stopped_by
            return result


class _State:
    """Whether a run has begun, and why it stopped, for its state.json."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.began = False
        self.stopped_by = ""

    def begin(self) -> None:
        write_state(self._run_dir, "running")
        self.began = True


@contextmanager
def _state_written(run_dir: Path) -> Iterator[_State]:
    """Write how the run ended in this context, if it began: a resume that fails to start changes nothing."""
    state = _State(run_dir)
    try:
        yield state
    except BaseException as error:
        if state.began:
            signal = next((reason for reason, kind in REASONS.items() if type(error) is kind), None)
            write_state(run_dir, "interrupted" if signal else "failed", signal or reason_of(error))
        raise
    write_state(run_dir, "interrupted" if state.stopped_by in REASONS else "finished", state.stopped_by)


def _run(
    checked: CheckedExperiment,
    runtime: Runtime,
    run_dir: Path,
    checkpoint: Checkpoint | None,
    files: Mapping[str, str],
    state: _State,
) -> Result:
    files = {**files, **record(checked.experiment)}
    if checkpoint is None:
        _begin(files, run_dir, state)
    checked, info = _identified(checked, run_dir, checkpoint)
    # Closed in reverse order: the runtime's processes end before the relay that shows what they print.
    with ExitStack() as stack:
        run_console, last_notices = stack.enter_context(_console(checked, info))
        relay = Relay(checked.experiment, run_console.notice)
        stop = checked.experiment.stop

        def end_soon() -> None:
            now_s = time.perf_counter()
            runtime.end_updates_at(now_s + updates_finish_s(stop))
            # The other half is for the updates of the round, a quarter at most, and for the checkpoint.
            runtime.end_rounds_at(now_s + stop.grace_period_s / 2)

        shutdown = GracefulShutdown(stop.grace_period_s, run_console.notice, relay.running, end_soon)
        stack.enter_context(shutdown.listening())
        stack.callback(relay.close)
        stack.callback(runtime.close)
        changed = [] if checkpoint is None else _changed(files[EXPERIMENT], run_dir / EXPERIMENT)
        _notify([*_of_skipped(checkpoint), *changed, *_start_notices(checked)], run_console)
        run: Run | None = None
        with _runtime_loss_raised(shutdown, run_dir):
            try:
                run = Run(checked, info, runtime, run_console, relay, shutdown, checkpoint)
                stack.push(run.close)
                if checkpoint is not None:
                    # Only now, so that a resume that fails to start leaves the files unchanged.
                    _begin(files, run_dir, state)
                shutdown.begin()
                run.run()
            except InvalidInput:
                raise
            except (MarlflowError, KeyboardInterrupt) as ended:
                if _runtime_loss(shutdown, ended) is None:
                    if run is not None and not isinstance(ended, KeyboardInterrupt):
                        run.report_failure()
                    last_notices.append(_resume_hint(saved_at(run_dir) if run is None else run.saved_at, run_dir))
                raise
            if shutdown.requested or run.failure is not None:
                last_notices.append(_resume_hint(run.saved_at, run_dir))
    # A signal may also have come after the last report; then no other run of a sweep may begin.
    run.stopped_by = shutdown.requested or run.stopped_by
    return _result(run, checked, run_dir)


def _begin(files: Mapping[str, str], run_dir: Path, state: _State) -> None:
    _write(files, run_dir)
    state.begin()


def _identified(
    checked: CheckedExperiment, run_dir: Path, checkpoint: Checkpoint | None
) -> tuple[CheckedExperiment, RunInfo]:
    """Return the experiment and its info under the run's id, which is new or the checkpoint's."""
    run_id = secrets.token_hex(4) if checkpoint is None else notes_of(checkpoint).run
    target = recording(checked.experiment, checked.spec, checked.players, run_dir, run_id)
    if checkpoint is not None:
        forget_recorded_after(checkpoint, run_dir, target)
    checked = replace(checked, spec=replace(checked.spec, recording=target))
    return checked, replace(run_info(checked, run_dir), id=run_id, configuration=plain(checked.experiment))


@contextmanager
def _console(checked: CheckedExperiment, info: RunInfo) -> Iterator[tuple[DetachableConsole, list[str]]]:
    """Yield the console of a run, and a list for the notices to print below its last state."""
    with ExitStack() as stack:
        run_console = DetachableConsole(console(checked.experiment.log.console, info))
        last_notices: list[str] = []
        stack.callback(_notify, last_notices, run_console)
        stack.callback(run_console.close)
        yield run_console, last_notices


def _start_notices(checked: CheckedExperiment) -> Iterator[str]:
    yield f"starting {_processes(checked)}"
    yield from _exposed(checked.experiment.runtime)
    yield from _rounds_too_long(checked)
    yield from checked.remarks
    if lost := unrecorded(checked.experiment):
        yield f"marlflow evaluate, play and export cannot make this run again: {'; '.join(lost)}; write it in a module"


def _changed(experiment: str, recorded: Path) -> Iterator[str]:
    """Yield the settings of a resumed run that differ from the settings recorded in its folder."""
    if not recorded.is_file():
        return
    try:
        before = with_current_names(json.loads(recorded.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        yield f"{recorded} cannot be read ({error}), so it is not known which settings have changed"
        return
    found = [f"changed: {change}" for change in changes(before, json.loads(experiment))]
    yield from found[:_MOST_CHANGES]
    if len(found) > _MOST_CHANGES:
        yield f"changed: {len(found) - _MOST_CHANGES} other settings"


def _notify(texts: Sequence[str], run_console: RunConsole) -> None:
    for text in texts:
        run_console.notice(text)


def _result(run: Run, checked: CheckedExperiment, run_dir: Path) -> Result:
    run.reporting.finish()
    log.info("stopped by %s; %s", run.stopped_by, run.reporting.overlaps(tuple(checked.spec.learners)))
    if run.failure is not None:
        raise run.failure
    objective = checked.experiment.objective
    return Result(run_dir, run.last, run.stopped_by, None if objective is None else metric(run.last, objective))


def _exposed(runtime: RuntimeConfig) -> Iterator[str]:
    if runtime.name == "ray" and ((joins := cluster_address(runtime)) or runtime.node_ip_address):
        opened = cluster_setting(runtime) if joins else f"runtime.node_ip_address={runtime.node_ip_address}"
        yield (
            f"{opened}: the run's processes listen on the network, and anyone who reaches them with Ray's "
            "token can run code in them"
        )


def _write(files: Mapping[str, str], run_dir: Path) -> None:
    for name, text in files.items():
        path = run_dir / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Replaced atomically: a run that is killed meanwhile can still be resumed.
            with replacing(path) as aside:
                aside.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigInvalid([f"{path} cannot be written: {error}"]) from error


def _of_skipped(checkpoint: Checkpoint | None) -> Sequence[str]:
    notice = skipped(checkpoint) if checkpoint is not None else None
    if notice is None:
        return []
    log.info(notice)
    return [notice]


@contextmanager
def _runtime_loss_raised(shutdown: GracefulShutdown, run_dir: Path) -> Iterator[None]:
    """Raise RuntimeFailed, with how to resume, in place of errors that the loss of the runtime caused."""
    try:
        yield
    except (MarlflowError, KeyboardInterrupt) as ended:
        if (loss := _runtime_loss(shutdown, ended)) is None:
            raise
        raise RuntimeFailed(f"{loss}\n{_resume_hint(saved_at(run_dir), run_dir)}") from None


def _runtime_loss(shutdown: GracefulShutdown, ended: BaseException) -> RuntimeFailed | None:
    # A lost runtime also makes whatever stage is running fail, so the error at hand may be only a consequence.
    causes = (shutdown.failure, ended, ended.__cause__)
    return next((cause for cause in causes if isinstance(cause, RuntimeFailed)), None)


def _resume_hint(env_steps: int | None, run_dir: Path) -> str:
    if env_steps is None:
        return "there is no checkpoint to resume from"
    command, in_python = f"marlflow resume {shlex.quote(str(run_dir))}", f"mf.resume(experiment, {str(run_dir)!r})"
    is_of_command = (run_dir / ".hydra" / "overrides.yaml").is_file()
    return f"to resume from {env_steps:,} env steps: {command if is_of_command else in_python}"


def _rounds_too_long(checked: CheckedExperiment) -> Iterator[str]:
    round_env_steps, stop_env_steps = checked.spec.round_env_steps, checked.experiment.stop.env_steps
    if stop_env_steps is not None and stop_env_steps < round_env_steps:
        least = f"a round is {round_env_steps:,} env steps, and the least that a run takes"
        yield f"{least}; lower rollouts.fragment_env_steps for stop.env_steps={stop_env_steps:,}"


def _processes(checked: CheckedExperiment) -> str:
    on_workers = [name for name, learner in checked.spec.learners.items() if learner.on_workers]
    apart = [learner for learner in checked.spec.learners.values() if not learner.on_workers]
    processes = sum(learner.placement.num_learners for learner in apart)
    workers, learners = checked.spec.num_workers, str(len(apart))
    if processes > len(apart) and checked.experiment.runtime.name == "ray":
        learners += f" ({processes} processes)"
    referees = f", referees {count}" if (count := checked.spec.num_referees) else ""
    suffix = f" (where {', '.join(on_workers)} learns)" if on_workers else ""
    return f"{checked.experiment.runtime.name}: rollout workers {workers}{suffix}, learners {learners}{referees}"


def run_info(checked: CheckedExperiment, run_dir: Path) -> RunInfo:
    """Return the information that the console shows about a run from its start."""
    learner_of = {policy: name for name, learner in checked.spec.learners.items() for policy in learner.members}
    experiment, stop = checked.experiment, checked.experiment.stop
    conditions = {"env_steps": stop.env_steps, "time_s": stop.time_s}
    conditions |= {f"policies.{name}.return_mean": target for name, target in stop.policies.items()}
    return RunInfo(
        name=experiment.name,
        run_dir=run_dir,
        policies={
            name: PolicyInfo(
                policy.algorithm.name,
                tuple(checked.players[name]),
                learner_of.get(name),
                changeable_settings(policy.algorithm) if name in learner_of else {},
            )
            for name, policy in checked.spec.policies.items()
        },
        runtime=experiment.runtime.name,
        stop={name: value for name, value in conditions.items() if value is not None},
    )
