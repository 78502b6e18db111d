"""`marlflow tune`: trials of an experiment with different settings, of which the worse ones end early."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import Words
from marlflow.cli.job import inline_by_default, prepared
from marlflow.cli.options import Arguments, Command, Option
from marlflow.cli.sweep import Sweep, exit_code, records_in
from marlflow.cli.sweep_checks import objective_problems
from marlflow.cli.sweep_records import read_records
from marlflow.config.compose import composing
from marlflow.config.experiment import Experiment
from marlflow.config.overrides import Prepared
from marlflow.config.search_space import jobs_of
from marlflow.driver.graceful_shutdown import REASON_OF, REASONS

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class _Schedule:
    """When ASHA compares trials: first at `grace` env steps, last at `most`."""

    grace: int
    most: int


def run_tune(arguments: Arguments) -> int:
    """Run the trials, print their table and return the exit code; raises ConfigInvalid before anything starts."""
    from marlflow.cli.train import check_run, new_folder_of, sweep_folder

    words = inline_by_default(arguments.overrides)
    parsed = Words(overrides=words, hydra_flags=["-m"], config_dirs=list(arguments["config_dir"]))
    ready = prepared(parsed)
    checked = check_run(ready, [*ready.problems, *_problems(ready, arguments)], several=True)
    jobs = _jobs(ready, arguments)
    schedule = _schedule(checked.experiment, arguments)
    template = new_folder_of(ready.config, several=True)
    sweep = Sweep(words, ready.config, ready.fixed, sweep_folder(ready.config, template), arguments["direction"])
    return _run(sweep, jobs, schedule, arguments)


def _run(sweep: Sweep, jobs: Sequence[Sequence[str]], schedule: _Schedule | None, arguments: Arguments) -> int:
    from marlflow.cli.tune_trial import TuneTrial

    run_trials, asha_of = _ray_tune()
    asha = None if schedule is None else asha_of(schedule.grace, schedule.most, arguments["reduction_factor"])
    parallel = min(arguments["parallel"] or _cpus(), len(jobs))
    ends = f"asha ends the worse ones from {schedule.grace:,} env steps on" if schedule else "all run to their end"
    print(f"{len(jobs)} trials, {parallel} at a time; {ends}; their folders are in {os.path.relpath(sweep.folder)}")
    with records_in(sweep.folder) as records:
        trial = TuneTrial(
            tuple(map(tuple, jobs)),
            frozenset(sweep.fixed),
            tuple(arguments["config_dir"]),
            sweep.folder,
            records,
            str(Path.cwd()),
            str(sweep.config.objective),
        )
        try:
            with _shown_as_they_end(records):
                ended_by = run_trials(trial, len(jobs), asha, sweep.direction, parallel, sweep.folder / ".tune")
        finally:
            sweep.show(results := read_records(records), is_remote=True)
    if ended_by is not None:
        raise REASONS[REASON_OF[ended_by]]
    return exit_code(results)


def _ray_tune() -> Any:
    try:
        from marlflow.runtime.ray.trials import Asha, run_trials
    except ImportError as error:
        raise ConfigInvalid(
            [f"marlflow tune needs Ray Tune, which is not installed whole ({error}): pip install 'marlflow[tune]'"]
        ) from error
    return run_trials, Asha


def _problems(ready: Prepared, arguments: Arguments) -> Iterator[str]:
    if ready.config.runtime.name != "inline":
        yield "each trial runs in one process, with runtime=inline; leave runtime out, or use marlflow train -m"
    for interval in ready.intervals:
        if arguments["samples"] is None:
            yield f"{interval} has any number of values; say how many trials: samples=20"
    yield from objective_problems(ready.config, "marlflow tune")


def _jobs(ready: Prepared, arguments: Arguments) -> list[list[str]]:
    # Hydra's own overrides are those of the command, such as its folder.
    overrides = [override for override in ready.overrides if not override.startswith("hydra.")]
    with composing():
        jobs = jobs_of(overrides, arguments["samples"], arguments["search_seed"])
    if len(jobs) < 2:
        raise ConfigInvalid(
            [
                "tune needs several values to choose from: list them (policies.<id>.algorithm.epochs=2,4,8), or give "
                "an interval ('policies.<id>.algorithm.learning_rate=tag(log,interval(1e-5,1e-2))') and samples=20"
            ]
        )
    return jobs


def _schedule(experiment: Experiment, arguments: Arguments) -> _Schedule | None:
    if arguments["scheduler"] == "none":
        return None
    most = experiment.stop.env_steps
    if most is None:
        raise ConfigInvalid(["scheduler=asha needs the end of a trial in env steps: set stop.env_steps"])
    grace = arguments["grace_env_steps"] or max(1, int(most / arguments["reduction_factor"] ** 2))
    problems = []
    if grace >= most:
        problems.append(f"grace_env_steps={grace:,} must be less than stop.env_steps={most:,}")
    if experiment.log.every_env_steps > grace:
        problems.append(_too_rare("reports come", "log.every_env_steps", experiment.log.every_env_steps, grace))
    evaluation = experiment.evaluation
    if ".eval_" in str(experiment.objective) and (evaluation.every_env_steps or most) > grace:
        every = evaluation.every_env_steps or most
        problems.append(_too_rare("evaluations are made", "evaluation.every_env_steps", every, grace))
    if problems:
        raise ConfigInvalid(problems)
    return _Schedule(grace, most)


def _too_rare(what: str, key: str, every: int, grace: int) -> str:
    return (
        f"asha first compares trials at {grace:,} env steps (grace_env_steps), and {what} every {every:,}; "
        f"set {key}={grace}, or a longer grace_env_steps"
    )


def _cpus() -> int:
    from marlflow.runtime.resources import local_resources

    return int(local_resources()["CPU"])


@contextmanager
def _shown_as_they_end(records: Path) -> Iterator[None]:
    """Print a line for each trial that has ended."""
    shown: set[int] = set()
    finished = threading.Event()

    def show() -> None:
        for record in read_records(records):
            if record.ended_by and record.number not in shown:
                shown.add(record.number)
                objective = "-" if record.objective is None else f"{record.objective:,.6g}"
                at = "" if record.env_steps is None else f" at {record.env_steps:,} env steps"
                print(f"{record.name} ended by {record.ended_by}{at}, objective {objective}", flush=True)

    def watch() -> None:
        while not finished.wait(_POLL_S):
            show()

    watcher = threading.Thread(target=watch, name="marlflow-trials", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        show()


_ABOUT = """
Each trial trains the experiment with other values of the keys that have several, in one process with one CPU. With
scheduler=asha, trials are compared at certain env steps by their objective, and only the best quarter of the trials
so far continues, so that most of the time goes into good settings. Each trial is an ordinary run, with a folder.

Without samples, there is a trial for each combination of values. With samples=N, there are N, each with values
drawn at random: one of a list, or a number of an interval.

It prints a table, and the command that trains with the best values again, and writes sweep.csv into the folder of
the trials, runs/<name>/<time> or hydra.sweep.dir.
"""

COMMAND = Command(
    "tune",
    run_tune,
    (
        Option("scheduler", "how trials end early", value="NAME", default="asha", choices=("asha", "none")),
        Option(
            "samples",
            "trials with random values; by default one trial for each combination",
            "whole number",
            "N",
            low=1,
        ),
        Option(
            "direction",
            "what to do with the objective",
            value="NAME",
            default="maximize",
            choices=("maximize", "minimize"),
        ),
        Option(
            "grace_env_steps",
            "env steps at which trials are compared first; by default stop.env_steps / reduction_factor^2",
            "whole number",
            "N",
            low=1,
        ),
        Option(
            "reduction_factor", "one in this many trials continues at each comparison", "number", "X", 4.0, low=1.01
        ),
        Option("parallel", "trials at a time; by default one for each CPU", "whole number", "N", low=1),
        Option("search_seed", "seed of the random values", "whole number", "N", 0, low=0),
        Option("config_dir", "a folder with configuration groups of your own", value="FOLDER", several=True),
    ),
    _ABOUT,
    (
        "experiment=cartpole_team_ppo objective=policies.team.return_mean samples=32 log.every_env_steps=2000 \\\n"
        "      'policies.team.algorithm.learning_rate=tag(log,interval(1e-5,1e-2))'",
        "env=simple_spread objective=policies.agent.return_mean log.every_env_steps=5000 \\\n"
        "      default_policy.algorithm.epochs=2,4,8,16",
    ),
    operands="key=value",
    fewest=0,
    most=0,
    overrides="",
)
