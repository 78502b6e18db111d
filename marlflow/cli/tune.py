"""`marlflow tune`: trials of an experiment with different settings, of which the worse ones end early.

The settings of the trials are all combinations, or random draws; each trial runs in the process of its actor.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import Words
from marlflow.cli.job import inline_by_default, prepared
from marlflow.cli.options import Arguments, Command, Option
from marlflow.cli.sweep import Sweep, exit_code, interval_problem, objective_problems, records_in
from marlflow.cli.sweep_records import JobRecord, best_of, check_csv, read_records
from marlflow.cli.tune_population import TrialPopulation, fixed_problems, sweeps_of
from marlflow.cli.tune_trial import PAUSED, TuneTrial
from marlflow.config.checked import CheckedExperiment
from marlflow.config.compose import composing, config_loader
from marlflow.config.experiment import Experiment
from marlflow.config.overrides import Prepared
from marlflow.driver.graceful_shutdown import REASON_OF, REASONS
from marlflow.observe.report import is_of_evaluation

_POLL_S = 0.5
# Options that only one scheduler has.
_SCHEDULERS = {"grace_env_steps": "asha", "reduction_factor": "asha", "every_env_steps": "pbt", "quantile": "pbt"}
_HYDRA_KEYS = ("hydra.sweep.dir", "hydra.searchpath", "hydra.sweeper.params", "hydra.mode")


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
    schedule = _schedule(checked, jobs, arguments)
    population = _population(checked, ready, jobs, arguments)
    template = new_folder_of(ready.config, several=True)
    folder = sweep_folder(ready.config, template)
    sweep = Sweep(words, parsed.config_dirs, ready.config, ready.fixed, folder, arguments["direction"])
    check_csv(folder)
    return _run(sweep, jobs, schedule, population, _evaluates_pauses(checked.experiment), arguments)


def _run(
    sweep: Sweep,
    jobs: Sequence[Sequence[str]],
    schedule: _Schedule | None,
    population: TrialPopulation | None,
    evaluates_pauses: bool,
    arguments: Arguments,
) -> int:
    run_trials, asha_of = _ray_tune()
    asha = None if schedule is None else asha_of(schedule.grace, schedule.most, arguments["reduction_factor"])
    parallel = min(arguments["parallel"] or _cpus(), len(jobs))
    ends = "all run to their end"
    if schedule is not None:
        ends = f"asha ends the worse ones from {schedule.grace:,} env steps on"
    elif population is not None:
        ends = f"the worse ones copy the better ones every {population.every_env_steps:,} env steps"
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
            evaluates_pauses=evaluates_pauses,
        )
        try:
            with _shown_as_they_end(records) as show:
                runs = [trial] if population is None else _generations(trial, population, show)
                own = sweep.folder / ".tune"
                ended_by = run_trials(runs, len(jobs), asha, sweep.direction, parallel, own, trial.end_soon)
        finally:
            shown = sweep if population is None else replace(sweep, direction=None)
            shown.show(results := read_records(records), is_remote=True)
    if ended_by is not None:
        if population is not None:
            where = os.path.relpath(sweep.folder)
            print(f"a population cannot be continued; each trial can alone: marlflow resume {where}/0", file=sys.stderr)
        raise REASONS[REASON_OF[ended_by]]
    if population is not None and (best := best_of(results, arguments["direction"])) is not None:
        # It has learned with other settings before its last ones, so no command would repeat it.
        where = os.path.relpath(best.folder)
        print(f"best: job {best.number}, {sweep.config.objective} {best.objective:,.6g}; what it learned is in {where}")
    return exit_code(results)


def _generations(trial: TuneTrial, population: TrialPopulation, show: Callable[[], None]) -> Iterator[TuneTrial]:
    for jobs, until, is_resumed in population.generations(trial.folder, trial.records):
        pauses_at = None if until == population.most else until
        yield replace(trial, jobs=tuple(map(tuple, jobs)), is_resumed=is_resumed, pauses_at=pauses_at)
        # Before the copies are printed; the next records take the place of these.
        show()


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
    for name, scheduler in _SCHEDULERS.items():
        if name in arguments.given and arguments["scheduler"] != scheduler:
            yield f"{name} is of scheduler={scheduler}, and this is scheduler={arguments['scheduler']}; leave it out"
    for word in ready.overrides:
        key = word.lstrip("+~").partition("=")[0]
        if key.startswith(("hydra.", "hydra/")) and key not in _HYDRA_KEYS:
            yield f"{word} is not used by tune, which runs its trials itself, in hydra.sweep.dir; leave it out"
    yield from objective_problems(ready.config, "marlflow tune")


def _overrides(ready: Prepared) -> list[str]:
    # Hydra's own overrides, such as its folder, belong to the command and not to its jobs, which need its groups.
    return [word for word in ready.overrides if not word.startswith("hydra.") or word.startswith("hydra.searchpath=")]


def _jobs(ready: Prepared, arguments: Arguments) -> list[list[str]]:
    with composing():
        jobs = jobs_of(_overrides(ready), arguments["samples"], arguments["search_seed"])
    if len(jobs) < 2:
        raise ConfigInvalid(
            [
                "tune needs several values to choose from: list them (policies.<id>.algorithm.epochs=2,4,8), or give "
                "an interval ('policies.<id>.algorithm.learning_rate=tag(log,interval(1e-5,1e-2))') and samples=20"
            ]
        )
    return jobs


def _schedule(checked: CheckedExperiment, jobs: Sequence[Sequence[str]], arguments: Arguments) -> _Schedule | None:
    if arguments["scheduler"] != "asha":
        return None
    experiment, a_round = checked.experiment, checked.spec.round_env_steps
    most = experiment.stop.env_steps
    if most is None:
        raise ConfigInvalid(["scheduler=asha needs the end of a trial in env steps: set stop.env_steps"])
    # By default a trial is compared after a round, a report, and an evaluation if that is the objective.
    intervals = [a_round, experiment.log.every_env_steps]
    if _is_of_evaluation(experiment):
        intervals.append(experiment.evaluation.every_env_steps)
    usual = max(1, int(most / arguments["reduction_factor"] ** 2))
    grace = arguments["grace_env_steps"] or max(usual, *(every for every in intervals if every < most), 1)
    problems = []
    words = [word.partition("=") for job in jobs for word in job]
    ends = [int(value) for key, _, value in words if key == "stop.env_steps" and value.isdecimal()]
    if grace >= min([most, *ends]):
        shortest = f"stop.env_steps={min([most, *ends]):,}"
        problems.append(f"asha first compares trials at {grace:,} env steps (grace_env_steps), and one has {shortest}")
    # Reports and evaluations come at the end of a round.
    longest = a_round * max(1, grace // a_round)
    if experiment.log.every_env_steps > max(grace, longest):
        problems.append(
            _too_rare("reports come", "log.every_env_steps", experiment.log.every_env_steps, grace, longest)
        )
    every = experiment.evaluation.every_env_steps
    if _is_of_evaluation(experiment) and experiment.evaluation.episodes == 0:
        problems.append("asha compares evaluations during a trial, and evaluation.episodes=0 plays none")
    elif _is_of_evaluation(experiment) and every > max(grace, longest):
        problems.append(_too_rare("evaluations are made", "evaluation.every_env_steps", every, grace, longest))
    if problems:
        raise ConfigInvalid(problems)
    return _Schedule(grace, max([most, *ends]))


def _population(
    checked: CheckedExperiment, ready: Prepared, jobs: Sequence[Sequence[str]], arguments: Arguments
) -> TrialPopulation | None:
    if arguments["scheduler"] != "pbt":
        return None
    experiment, a_round = checked.experiment, checked.spec.round_env_steps
    most = experiment.stop.env_steps
    if most is None:
        raise ConfigInvalid(["scheduler=pbt needs the end of a trial in env steps: set stop.env_steps"])
    # In whole rounds, so that a trial trains equally long between all comparisons.
    every = arguments["every_env_steps"] or a_round * math.ceil(most / 10 / a_round)
    if every < a_round:
        raise ConfigInvalid(
            [
                f"every_env_steps={every:,} is less than a round, the least that a trial trains: {a_round:,} "
                f"env steps; set every_env_steps={a_round}, or lower rollouts.fragment_env_steps"
            ]
        )
    if a_round * math.ceil(every / a_round) >= most:
        raise ConfigInvalid(
            [
                f"scheduler=pbt would first compare trials at {every:,} env steps (every_env_steps), at the end of a "
                f"round of {a_round:,}, and stop.env_steps={most:,}; raise stop.env_steps"
            ]
        )
    sweeps = sweeps_of(_overrides(ready))
    if any(len({job[at] for job in jobs}) > 1 for at, one in enumerate(sweeps) if one.key_or_group == "stop.env_steps"):
        raise ConfigInvalid(
            [
                "scheduler=pbt compares trials at the same env steps, and stop.env_steps has several values; give it "
                "one value, or use scheduler=asha"
            ]
        )
    if problems := list(fixed_problems(checked, jobs, sweeps, arguments["config_dir"])):
        raise ConfigInvalid(problems)
    return TrialPopulation(
        [list(job) for job in jobs],
        sweeps,
        every,
        most,
        arguments["quantile"],
        arguments["direction"],
        arguments["search_seed"],
        a_round,
    )


def _evaluates_pauses(experiment: Experiment) -> bool:
    # Callbacks may use evaluations, or ask for them.
    return _is_of_evaluation(experiment) or any(one is not None for one in experiment.callbacks.values())


def _is_of_evaluation(experiment: Experiment) -> bool:
    return is_of_evaluation(str(experiment.objective))


def _too_rare(what: str, key: str, every: int, grace: int, longest: int) -> str:
    return (
        f"asha first compares trials at {grace:,} env steps (grace_env_steps), and {what} every {every:,}; "
        f"set {key}={longest}, or a longer grace_env_steps"
    )


def _cpus() -> int:
    from marlflow.runtime.resources import local_resources

    return int(local_resources()["CPU"])


@contextmanager
def _shown_as_they_end(records: Path) -> Iterator[Callable[[], None]]:
    """Print a line for each trial that has ended, or paused.

    Gives a function that does so at once, for those that were not shown yet.
    """
    shown: set[tuple[int, int | None]] = set()
    finished, one_at_a_time = threading.Event(), threading.Lock()

    def show() -> None:
        with one_at_a_time:
            for record in read_records(records):
                if record.ended_by and (record.number, record.env_steps) not in shown:
                    shown.add((record.number, record.env_steps))
                    print(_end_of(record), flush=True)

    def watch() -> None:
        while not finished.wait(_POLL_S):
            show()

    watcher = threading.Thread(target=watch, name="marlflow-trials", daemon=True)
    watcher.start()
    try:
        yield show
    finally:
        finished.set()
        watcher.join()
        show()


def _end_of(record: JobRecord) -> str:
    objective = "-" if record.objective is None else f"{record.objective:,.6g}"
    at = "" if record.env_steps is None else f" at {record.env_steps:,} env steps"
    how = PAUSED if record.ended_by == PAUSED else f"ended by {record.ended_by}"
    return f"{record.name} {how}{at}, objective {objective}"


_ABOUT = """
Each trial trains the experiment with other values of the keys that have several, in one process with one CPU. With
scheduler=asha, trials are compared at certain env steps by their objective, and only the best quarter of the trials
so far continues, so that most of the time goes into good settings. With scheduler=pbt, the worst quarter continues
from checkpoints of the best, with settings near theirs. Each trial is an ordinary run, with a folder.

Without samples, there is a trial for each combination of values. With samples=N, there are N, each with values
drawn at random: one of a list, or a number of an interval. Where all values are listed, a combination comes again
only after all others.

It prints a table, and the command that trains with the best values again (with pbt, the folder of the best trial),
and writes sweep.csv into the folder of the trials, runs/<name>/<time> or hydra.sweep.dir.
"""

COMMAND = Command(
    "tune",
    run_tune,
    (
        Option("scheduler", "how trials end early", value="NAME", default="asha", choices=("asha", "pbt", "none")),
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
            "env steps at which trials are compared first; by default stop.env_steps / reduction_factor^2, or after "
            "the first report, and evaluation if the objective is of one",
            "whole number",
            "N",
            low=1,
        ),
        Option(
            "reduction_factor", "one in this many trials continues at each comparison", "number", "X", 4.0, low=1.01
        ),
        Option(
            "every_env_steps",
            "env steps between comparisons of pbt; by default stop.env_steps / 10, in whole rounds",
            "whole number",
            "N",
            low=1,
        ),
        Option("quantile", "share of the trials that copies others with pbt", "number", "X", 0.25, low=0.0, high=0.5),
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
    overrides=("",),
)


Draw = Callable[[np.random.Generator], str]


def jobs_of(overrides: Sequence[str], samples: int | None, seed: int) -> list[list[str]]:
    """Return the overrides of each job; call within `composing`.

    Without `samples`, there is a job for each combination of values, and the last key changes fastest. With it, each
    job draws its values independently: one of a list or range with equal probability, and from an interval uniformly,
    or uniformly in the logarithm with `tag(log, interval(...))`. But where all values are listed, a combination comes
    again only after all others. Where no key has several values, there is one job. Raises ConfigInvalid for an interval
    without samples.
    """
    parsed = OverridesParser.create(config_loader()).parse_overrides(list(overrides))
    if samples is None or not any(_has_several(override) for override in parsed):
        return _combinations(parsed)
    generator = np.random.default_rng(seed)
    draws = [_draw(override) for override in parsed]
    is_listed = not any(override.is_interval_sweep() for override in parsed)
    # Equal values in a list are one.
    combinations = math.prod(len(set(values)) for values in _values(parsed)) if is_listed else math.inf
    jobs: list[list[str]] = []
    # Since each combination came equally often.
    drawn: set[tuple[str, ...]] = set()
    while len(jobs) < samples:
        job = tuple(draw(generator) for draw in draws)
        if is_listed and job in drawn:
            continue
        jobs.append(list(job))
        drawn.add(job)
        if len(drawn) == combinations:
            drawn.clear()
    return jobs


def _combinations(parsed: Sequence[Override]) -> list[list[str]]:
    if lacking := [override.input_line for override in parsed if override.is_interval_sweep()]:
        raise ConfigInvalid([f"{line} has any number of values; say how many trials: samples=20" for line in lacking])
    return [list(job) for job in itertools.product(*_values(parsed))]


def _values(parsed: Sequence[Override]) -> list[list[str]]:
    return [_listed(override) if override.is_sweep_override() else [str(override.input_line)] for override in parsed]


def _has_several(override: Override) -> bool:
    return override.is_interval_sweep() or (override.is_sweep_override() and len(_listed(override)) > 1)


def _listed(override: Override) -> list[str]:
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _draw(override: Override) -> Draw:
    if not override.is_sweep_override():
        return lambda _: str(override.input_line)
    if override.is_interval_sweep():
        return _drawn_from_interval(override.get_key_element(), override.value())
    choices = _listed(override)
    return lambda generator: choices[int(generator.integers(len(choices)))]


def _drawn_from_interval(key: str, interval: Any) -> Draw:
    if (problem := interval_problem(key, interval)) is not None:
        raise ConfigInvalid([problem])
    low, high, is_log = interval.start, interval.end, "log" in interval.tags
    is_whole = isinstance(low, int) and isinstance(high, int)

    def draw(generator: np.random.Generator) -> str:
        # A whole number represents the interval from itself to the next one, so all are equally likely.
        top = high + 1 if is_whole else high
        ends = (math.log(low), math.log(top)) if is_log else (low, top)
        value = generator.uniform(*ends)
        number = math.exp(value) if is_log else value
        return f"{key}={min(math.floor(number), high) if is_whole else min(max(number, low), high)}"

    return draw
