"""The suite of a benchmark, the runs of its tasks, their progress in its folder, and their scores."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.base.files import file_name, replacing
from marlflow.base.progress import tracked
from marlflow.base.schedules import Schedule
from marlflow.base.sentences import misspelled_key
from marlflow.cli.arguments import CONFIG_DIR, Words
from marlflow.cli.job import inline_by_default, prepared
from marlflow.config.compose import SUITE, Groups, composing
from marlflow.config.construct import imported
from marlflow.config.experiment import Experiment
from marlflow.config.folders import quoted, searchpath_override, searchpath_problems
from marlflow.config.other_environment import env_of_words, in_env, values_for
from marlflow.config.overrides import Prepared
from marlflow.config.schema import plain_values, read, read_values
from marlflow.config.suggestions import no_option
from marlflow.config.target_nodes import TARGET
from marlflow.html_report.suite_report import SuiteScores
from marlflow.runs.checkpoints import CheckpointStore
from marlflow.runs.run_state import run_state
from marlflow.runs.saved_runs import folder as checkpoints_of

_ENV_WORD = re.compile(r"env(\.[\w.]+)?=")
_CONFIG = Path(".hydra", "config.yaml")


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """A run of an algorithm on a task: `words` are the overrides and flags of `marlflow train`.

    It is complete, or is resumed from a checkpoint, or begins.
    """

    task: str
    algorithm: str
    seed: int
    folder: Path
    words: tuple[str, ...]
    env_steps: int
    state: Literal["complete", "resume", "new"]

    @property
    def name(self) -> str:
        """The run as messages name it."""
        return f"{self.algorithm} on {self.task}, seed {self.seed}"

    def begin(self) -> list[str]:
        """Return the arguments of marlflow that train it to its end; remove a beginning that cannot be resumed."""
        if self.state == "complete":
            return []
        if self.state == "resume":
            return ["resume", str(self.folder)]
        shutil.rmtree(self.folder, ignore_errors=True)
        return ["train", *self.words]


@dataclass(frozen=True, slots=True)
class BenchmarkPlan:
    """The chosen tasks and algorithms of a suite, seeds, and the factor of the suite's env steps."""

    suite: Suite
    tasks: Sequence[str]
    algorithms: Sequence[str]
    seeds: Sequence[int]
    budget: float
    config_dirs: Sequence[str]
    folder: Path

    def runs(self) -> list[BenchmarkRun]:
        """Return all runs, each task in turn; raises ConfigInvalid with the problems of all."""
        problems = list[str]()
        found = list[BenchmarkRun]()
        pairs = [(task, algorithm) for task in self.tasks for algorithm in self.algorithms]
        for task, algorithm in tracked("checking", pairs):
            try:
                found += self._runs_of(task, algorithm)
            except InvalidInput as error:
                problems += [f"{algorithm} on {task}: {problem}" for problem in error.problems]
        if problems:
            raise ConfigInvalid(problems)
        return sorted(found, key=lambda run: run.seed)

    def _runs_of(self, task: str, algorithm: str) -> Iterator[BenchmarkRun]:
        of_task = self.suite.tasks[task]
        words = [*self.suite.algorithms[algorithm], *of_task.overrides, *of_task.algorithms.get(algorithm, ())]
        overrides = inline_by_default([*words, "log.console=none"])
        ready, env_steps = self._composed(overrides)
        runs = []
        for seed in self.seeds:
            folder = self.folder / file_name(task) / file_name(algorithm) / str(seed)
            words = [*ready.overrides, f"seed={seed}", f"hydra.run.dir={quoted(str(folder))}"]
            for config_dir in self.config_dirs:
                words += [CONFIG_DIR, config_dir]
            config: Any = OmegaConf.to_container(ready.config, resolve=False)
            state = _state(folder, {**config, "seed": seed})
            runs.append(BenchmarkRun(task, algorithm, seed, folder, tuple(words), env_steps, state))
        # Runs that are complete need no environment, which may take seconds to open.
        if any(run.state != "complete" for run in runs):
            _check(ready, of_task, self.suite.policies)
        yield from runs

    def _composed(self, overrides: list[str]) -> tuple[Prepared, int]:
        ready = _prepared(overrides, self.config_dirs)
        env_steps = OmegaConf.select(ready.config, "stop.env_steps")
        if not isinstance(env_steps, int | float) or env_steps < 1:
            raise ConfigInvalid([f"a run needs an end in env steps, and stop.env_steps is {env_steps}"])
        if self.budget == 1:
            return ready, int(env_steps)
        changed = max(1, round(self.budget * env_steps))
        values = plain_values(ready.config)
        schedules = [
            *scaled_schedules(values, self.budget),
            *_scaled_defaults(read(ready.config, []), values, self.budget),
        ]
        return _prepared([*overrides, f"stop.env_steps={changed}", *schedules], self.config_dirs), changed


def _prepared(overrides: list[str], config_dirs: Sequence[str]) -> Prepared:
    ready = prepared(Words(overrides=overrides, config_dirs=list(config_dirs)))
    if ready.problems:
        raise ConfigInvalid(ready.problems)
    return ready


def _check(ready: Prepared, task: SuiteTask, scored: Sequence[str]) -> None:
    """Raise ConfigInvalid if the runs of a pair could not train, or could not be scored."""
    from marlflow.checks.commands import check, machines_of

    problems: list[str] = []
    experiment = read(ready.config, problems)
    checked = check(experiment, problems, machines_of(experiment))
    if unknown := [policy for policy in scored if policy not in checked.spec.policies]:
        names = ", ".join(checked.spec.policies)
        raise ConfigInvalid([f"its policies are {names}, and the suite scores {', '.join(unknown)}"])
    if checked.spec.mapping is None:
        raise ConfigInvalid(
            [
                "a league or matchmaker chooses who plays each agent, so that no policy has a return of its own as "
                "score; give policies their agents by a mapping, or compare runs by marlflow evaluate against=..."
            ]
        )
    if task.score_env:
        try:
            check(_scored(ready, task, problems), problems)
        except InvalidInput as error:
            raise ConfigInvalid([f"with score_env, {problem}" for problem in error.problems]) from error


def _scored(ready: Prepared, task: SuiteTask, problems: list[str]) -> Experiment | None:
    """Return the experiment in the environment of the scored episodes; appends to `problems`."""
    env = env_of_words(task.score_env)
    experiment = read_values(values_for(plain_values(ready.config), env), problems)
    return None if experiment is None else in_env(experiment, env)


def _state(folder: Path, config: dict[str, Any]) -> Literal["complete", "resume", "new"]:
    """Return how far the run in a folder is; raises ConfigInvalid if it is another run, or is in progress."""
    if not (folder / _CONFIG).is_file():
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise ConfigInvalid([f"{folder} has something else than a run of marlflow train; choose another dir"])
        return "new"
    try:
        recorded: Any = OmegaConf.to_container(OmegaConf.load(folder / _CONFIG), resolve=False)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigInvalid([f"{folder / _CONFIG} cannot be read: {str(error).splitlines()[0]}"]) from error
    if different := next(_differences(recorded, {key: of for key, of in config.items() if key != "hydra"}), None):
        raise ConfigInvalid([f"{folder} has a run with other settings: {different}; choose another dir"])
    state = run_state(folder).name
    if state == "running":
        raise ConfigInvalid([f"the run in {folder} is in progress; wait for its end"])
    if state == "finished":
        return "complete"
    checkpoints = checkpoints_of(folder)
    return "resume" if checkpoints.is_dir() and CheckpointStore(checkpoints, keep=1).whole() else "new"


def _differences(recorded: Any, wanted: Any, path: str = "") -> Iterator[str]:
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        for key in {**recorded, **wanted}:
            here = f"{path}.{key}" if path else str(key)
            yield from _differences(recorded.get(key), wanted.get(key), here)
    elif recorded != wanted:
        yield f"{path} is {recorded!r} there, and {wanted!r} now"


_LENGTHS = ("agent_steps", "at_agent_steps")


@dataclass(frozen=True, slots=True)
class SuiteTask:
    """A task: its overrides, the scores that count as 0 and 1, and words that choose `env` for scored episodes.

    `algorithms`: further overrides of single algorithms on this task.
    """

    overrides: tuple[str, ...]
    low: float
    high: float
    score_env: tuple[str, ...]
    algorithms: Mapping[str, tuple[str, ...]]

    def normalized(self, score: float) -> float:
        """Return a score with `low` at 0 and `high` at 1."""
        return (score - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks, algorithms as overrides, and the policies whose agents' returns are summed to a score."""

    name: str
    policies: tuple[str, ...]
    tasks: Mapping[str, SuiteTask]
    algorithms: Mapping[str, tuple[str, ...]]


def read_suite(name: str, config_dirs: Sequence[str] = ()) -> Suite:
    """Return the suite of a name, of marlflow or in one of `config_dirs`; raises ConfigInvalid with every problem."""
    if problems := list(searchpath_problems(config_dirs)):
        raise ConfigInvalid(problems)
    path = searchpath_override([f"file://{folder}" for folder in config_dirs])
    with composing():
        groups = Groups(path)
        if name not in (options := groups.options(SUITE)):
            raise ConfigInvalid([no_option(SUITE, name, options, config_dirs)])
        values: Any = OmegaConf.to_container(groups.file(f"{SUITE}/{name}"))
    problems = [f"suite {name}: {problem}" for problem in _problems(values)]
    if problems:
        raise ConfigInvalid(problems)
    tasks = {
        str(task): SuiteTask(
            tuple(of["overrides"]),
            float(of["low"]),
            float(of["high"]),
            tuple(of.get("score_env") or ()),
            {str(algorithm): tuple(words) for algorithm, words in (of.get("algorithms") or {}).items()},
        )
        for task, of in values["tasks"].items()
    }
    algorithms = {str(algorithm): tuple(of["overrides"]) for algorithm, of in values["algorithms"].items()}
    return Suite(name, tuple(values["policies"]), tasks, algorithms)


def _problems(values: Any) -> Iterator[str]:
    if not isinstance(values, dict):
        yield "it must have policies, tasks and algorithms"
        return
    yield from _key_problems("", values, ("policies", "tasks", "algorithms"))
    if "policies" in values and not _are_texts(values["policies"]):
        yield "policies must be a list of the ids of policies, such as [agent]"
    for section, keys in (("tasks", ("overrides", "low", "high")), ("algorithms", ("overrides",))):
        if section not in values:
            continue
        entries = values[section]
        if not isinstance(entries, dict) or not entries:
            yield f"{section} must have at least one entry, <name>: {{{', '.join(f'{key}: ...' for key in keys)}}}"
            continue
        for name, entry in entries.items():
            yield from _entry_problems(f"{section}.{name}", entry, keys)
            if section == "tasks" and isinstance(entry, dict):
                yield from _own_problems(f"{section}.{name}.algorithms", entry, values.get("algorithms"))


def _own_problems(path: str, task: Mapping[Any, Any], algorithms: Any) -> Iterator[str]:
    """Yield what is wrong with a task's overrides of single algorithms."""
    own = task.get("algorithms") or {}
    if not (isinstance(own, dict) and all(_are_texts(words) for words in own.values())):
        yield f"{path} must have lists of overrides by algorithms, such as {{ppo: [policies.agent.algorithm.epochs=8]}}"
    elif isinstance(algorithms, dict):
        yield from (
            misspelled_key(f"{path}.{name}", str(name), [str(one) for one in algorithms], "the suite's algorithms")
            for name in own
            if name not in algorithms
        )


def _entry_problems(path: str, entry: Any, keys: Sequence[str]) -> Iterator[str]:
    if not isinstance(entry, dict):
        yield f"{path} must have {', '.join(keys)}"
        return
    yield from _key_problems(f"{path}.", entry, keys, ("score_env", "algorithms") if "low" in keys else ())
    if "overrides" in entry and not _are_texts(entry["overrides"]):
        yield f"{path}.overrides must be a list of overrides as of marlflow train, such as [env.num_agents=2]"
    limits = [entry[key] for key in ("low", "high") if key in entry]
    if not all(isinstance(limit, int | float) and math.isfinite(limit) for limit in limits):
        yield f"{path}.low and {path}.high must be numbers: the scores that count as 0 and as 1"
    elif len(limits) == 2 and not limits[0] < limits[1]:
        yield f"{path}.low must be below {path}.high, not {limits[0]} and {limits[1]}"
    if (words := entry.get("score_env")) and not (_are_texts(words) and all(_ENV_WORD.match(word) for word in words)):
        yield f"{path}.score_env must be a list as for marlflow evaluate, such as [env.batched=false]"


def _key_problems(path: str, values: Mapping[Any, Any], keys: Sequence[str], more: Sequence[str] = ()) -> Iterator[str]:
    yield from (f"{path}{key} is missing" for key in keys if key not in values)
    known = [*keys, *more]
    yield from (
        misspelled_key(f"{path}{key}", str(key), known, path[:-1] or "a suite") for key in values if key not in known
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


def scaled_schedules(config: Any, factor: float, path: str = "") -> Iterator[str]:
    """Yield overrides that multiply the `agent_steps` or `at_agent_steps` of each schedule by a factor.

    `config` has plain values.
    """
    entries = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    is_schedule = isinstance(config, dict) and any(name in config for name in _LENGTHS) and _makes_schedule(config)
    for key, value in entries:
        here = f"{path}.{key}" if path else str(key)
        if is_schedule and key in _LENGTHS:
            yield f"{here}={_scaled(value, factor)}".replace(" ", "")
        else:
            yield from scaled_schedules(value, factor, here)


def _scaled(steps: Any, factor: float) -> int | list[int]:
    several = isinstance(steps, list | tuple)
    scaled = list[int]()
    for one in steps if several else [steps]:
        # They have to grow.
        scaled.append(max(scaled[-1] + 1 if scaled else 1, round(factor * float(one))))
    return scaled if several else scaled[0]


def _scaled_defaults(value: Any, config: Any, factor: float, path: str = "") -> Iterator[str]:
    """Yield overrides that give each schedule that is a default of a class, and not in `config`, scaled."""
    for key, one in (value if isinstance(value, Mapping) else _settings(value)).items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(config, dict) and key in config:
            yield from _scaled_defaults(one, config[key], factor, here)
        elif isinstance(one, Schedule):
            settings = _settings(one)
            lengths = {name: _scaled(steps, factor) for name, steps in settings.items() if name in _LENGTHS}
            if lengths:
                target = f"{type(one).__module__}.{type(one).__qualname__}"
                made = ", ".join(f"{name}: {json.dumps(of)}" for name, of in {**settings, **lengths}.items())
                yield f"+{here}={{{TARGET}: {target}, {made}}}"


def _settings(made: Any) -> Mapping[str, Any]:
    if isinstance(made, type) or not is_dataclass(made):
        return {}
    return {field.name: getattr(made, field.name) for field in fields(made) if field.init}


def _makes_schedule(config: dict[str, Any]) -> bool:
    # The checks of the run report targets that cannot be imported.
    return callable(getattr(imported(config.get(TARGET), "", []), "at", None))


SCORES = "scores.csv"


@dataclass(frozen=True, slots=True)
class RunScore:
    """A row of scores.csv; `scored` has, as JSON, everything else that the score depends on."""

    task: str
    algorithm: str
    seed: int
    env_steps: int
    episodes: int
    score: float
    normalized: float
    scored: str


class BenchmarkScores:
    """The scores of the runs of a plan, and of all other runs in its folder, as scores.csv keeps them."""

    def __init__(self, plan: BenchmarkPlan, runs: Sequence[BenchmarkRun], episodes: int) -> None:
        self._plan, self._runs, self._episodes = plan, runs, episodes
        self._path = plan.folder / SCORES
        self._all = {(one.task, one.algorithm, one.seed): self._renormalized(one) for one in _read_scores(self._path)}
        for run in runs:
            known = self._all.get((run.task, run.algorithm, run.seed))
            if known is not None and not (run.state == "complete" and known == self._row(run, known.score)):
                del self._all[run.task, run.algorithm, run.seed]

    def __contains__(self, run: BenchmarkRun) -> bool:
        return (run.task, run.algorithm, run.seed) in self._all

    def _renormalized(self, row: RunScore) -> RunScore:
        # The limits of the task may be others than before.
        task = self._plan.suite.tasks.get(row.task)
        return row if task is None else replace(row, normalized=task.normalized(row.score))

    def _row(self, run: BenchmarkRun, score: float) -> RunScore:
        suite = self._plan.suite
        scored = json.dumps({"policies": suite.policies, "env": suite.tasks[run.task].score_env}, sort_keys=True)
        normalized = suite.tasks[run.task].normalized(score)
        return RunScore(run.task, run.algorithm, run.seed, run.env_steps, self._episodes, score, normalized, scored)

    def add(self, run: BenchmarkRun, score: float) -> None:
        """Keep the score of a run, and write scores.csv."""
        self._all[run.task, run.algorithm, run.seed] = self._row(run, score)
        self.write()

    def write(self) -> None:
        """Write scores.csv."""
        text = io.StringIO()
        writer = csv.DictWriter(text, [field.name for field in fields(RunScore)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in self._all.values())
        with replacing(self._path) as aside:
            aside.write_text(text.getvalue(), encoding="utf-8")

    def suite_scores(self) -> SuiteScores:
        """Return the scores of the runs of the plan, for a report."""
        plan, suite = self._plan, self._plan.suite
        env_steps = {(run.task, run.algorithm): run.env_steps for run in self._runs}
        scores: dict[tuple[str, str], list[float]] = {pair: [] for pair in env_steps}
        for run in self._runs:
            if run in self:
                scores[run.task, run.algorithm].append(self._all[run.task, run.algorithm, run.seed].score)
        about = [
            f"A score is the mean over {self._episodes:,} episodes of the final policies, acting as their algorithms "
            f"learn to, of the sum of the returns of all agents of {', '.join(suite.policies)}.",
            *(
                f"{task} was scored with {', '.join(words)}."
                for task in plan.tasks
                if (words := suite.tasks[task].score_env)
            ),
        ]
        limits = {task: (suite.tasks[task].low, suite.tasks[task].high) for task in plan.tasks}
        missing = [run.name for run in self._runs if run not in self]
        return SuiteScores(suite.name, limits, plan.algorithms, scores, env_steps, about, plan.budget, missing)


def _read_scores(path: Path) -> list[RunScore]:
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [
                RunScore(
                    row["task"],
                    row["algorithm"],
                    int(row["seed"]),
                    int(row["env_steps"]),
                    int(row["episodes"]),
                    float(row["score"]),
                    float(row["normalized"]),
                    row["scored"],
                )
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise ConfigInvalid([f"{path} cannot be read: {error}; remove it, and runs are scored again"]) from error
