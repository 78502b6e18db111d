"""The runs of a benchmark: which there are, what is wrong with them, and how far those in its folder are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.base.files import file_name
from marlflow.base.progress import tracked
from marlflow.cli.arguments import CONFIG_DIR, Words
from marlflow.cli.job import inline_by_default, prepared
from marlflow.cli.train import quoted
from marlflow.config.overrides import Prepared
from marlflow.config.schema import plain_values, read, read_values
from marlflow.config.suite import Suite, SuiteTask, scaled_schedules
from marlflow.runs.checkpoints import CheckpointStore
from marlflow.runs.run_state import run_state
from marlflow.runs.saved_runs import folder as checkpoints_of

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
    """The chosen tasks and algorithms of a suite, seeds, and the share of the env steps of each run."""

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
        overrides = inline_by_default([*self.suite.algorithms[algorithm], *of_task.overrides, "log.console=none"])
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
        cut = max(1, round(self.budget * env_steps))
        shorter = scaled_schedules(plain_values(ready.config), self.budget)
        return _prepared([*overrides, f"stop.env_steps={cut}", *shorter], self.config_dirs), cut


def _prepared(overrides: list[str], config_dirs: Sequence[str]) -> Prepared:
    ready = prepared(Words(overrides=overrides, config_dirs=list(config_dirs)))
    if ready.problems:
        raise ConfigInvalid(ready.problems)
    return ready


def _check(ready: Prepared, task: SuiteTask, scored: Sequence[str]) -> None:
    """Raise ConfigInvalid if the runs of a pair could not train, or could not be scored."""
    from marlflow.checks.commands import check, machines_of
    from marlflow.config.recorded import with_settings

    problems: list[str] = []
    experiment = read(ready.config, problems)
    checked = check(experiment, problems, machines_of(experiment))
    if unknown := [policy for policy in scored if policy not in checked.spec.policies]:
        names = ", ".join(checked.spec.policies)
        raise ConfigInvalid([f"its policies are {names}, and the suite scores {', '.join(unknown)}"])
    if task.score_env:
        played = read_values(with_settings(plain_values(ready.config), task.score_env), problems)
        try:
            check(played, problems)
        except InvalidInput as error:
            raise ConfigInvalid([f"with score_env, {problem}" for problem in error.problems]) from error


def _state(folder: Path, config: dict[str, Any]) -> Literal["complete", "resume", "new"]:
    """Return how far the run in a folder is; raises ConfigInvalid if it is another run, or is in progress."""
    if not (folder / _CONFIG).is_file():
        if folder.exists() and any(folder.iterdir()):
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
