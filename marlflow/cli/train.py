"""`marlflow train`: check everything, then run the job, or with `-m` have Hydra run several."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.cli.arguments import split
from marlflow.cli.job import prepared
from marlflow.cli.sweep import Sweep
from marlflow.config.comments import explained
from marlflow.config.compose import MODULE, NAME, composition_problem, run_job
from marlflow.config.trust import signed

if TYPE_CHECKING:
    from marlflow.config.validation import CheckedExperiment
    from marlflow.driver.train import Result

_TIME = re.compile(r"\$\{now:([^}]*)\}")
_GRID_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def run_train(words: list[str]) -> int:
    """Train; return 0, or a sweep's exit code.

    Raises ConfigInvalid before anything starts, and any other MarlflowError of the run.
    """
    parsed = split(words, "train")
    ready = prepared(parsed)
    config = ready.config
    if parsed.only_shows:
        if ready.problems:
            raise ConfigInvalid(ready.problems)
        _show([*parsed.hydra_flags, *ready.overrides], config if parsed.shows_configuration else None)
        return 0
    several = parsed.multirun or config.hydra.mode is RunMode.MULTIRUN
    checked = _check_run(config, [*ready.problems, *_unused_folders(parsed.overrides, several)], several)
    folder = _new_folder(config, several)
    if several:
        overrides = [*ready.overrides, *([] if folder is None else [f"{_folder_key(several)}={quoted(folder)}"])]
        return _run_sweep([*parsed.hydra_flags, *overrides], Sweep(ready.fixed))
    from marlflow.driver.train import train_checked

    run_job(config, folder, lambda job: outcome(train_checked(checked, _run_dir(), files=recorded(job))))
    return 0


def _show(words: Sequence[str], config: DictConfig | None) -> None:
    output = io.StringIO()
    # Hydra prints; a configuration gets its comments afterwards.
    with redirect_stdout(output):
        hand_to_hydra(words, lambda _: None)
    print(output.getvalue() if config is None else explained(output.getvalue(), _as_written(config)), end="")


def _run_sweep(words: Sequence[str], sweep: Sweep) -> int:
    try:
        hand_to_hydra(words, lambda config: outcome(sweep.watch(lambda: _train_job(config))))
    except MarlflowError as error:
        if not sweep.has_printed(error):
            raise
    finally:
        if table := sweep.table():
            print(table)
    return sweep.code


def _as_written(config: DictConfig) -> Any:
    # Unresolved: interpolations are shown as written.
    return OmegaConf.to_container(config)


def _check_run(config: DictConfig, problems: Sequence[str], several: bool) -> CheckedExperiment:
    """Check a run before its folder is made; in a sweep, the first job."""
    from marlflow.config.checks import check, machines_of
    from marlflow.config.folders import existing_run_problems, folder_problems
    from marlflow.config.schema import read

    all_problems = list(problems)
    experiment = read(config, all_problems)
    if several:
        # Only the first job can be checked here; Hydra composes the others when they start.
        all_problems += _sweep_problems(config)
    if not all_problems:  # else it may be made of what is wrong
        folder = Path(OmegaConf.select(config, _folder_key(several)))
        all_problems += folder_problems("the folder of the run", folder)
        if not all_problems and _TIME.search(_folder_template(config, several)) is None:
            all_problems += existing_run_problems(folder / _first_job(config) if several else folder)
    return check(experiment, all_problems, machines_of(experiment))


def _folder_key(several: bool) -> str:
    return "hydra.sweep.dir" if several else "hydra.run.dir"


def _folder_template(config: DictConfig, several: bool) -> str:
    """Return the folder of the run, or of a sweep, with its interpolations `${...}`."""
    section = OmegaConf.to_container(config.hydra.sweep if several else config.hydra.run, resolve=False)
    assert isinstance(section, dict)
    return str(section["dir"])


def _first_job(config: DictConfig) -> str:
    try:
        return str(OmegaConf.select(_with_value(config, "hydra.job.num", 0), "hydra.sweep.subdir"))
    except OmegaConfBaseException:
        return ""  # each job looks again before it begins


def _with_value(config: DictConfig, key: str, value: str | int) -> DictConfig:
    changed = OmegaConf.create(OmegaConf.to_container(config, resolve=False))  # Hydra's own is read-only
    assert isinstance(changed, DictConfig)
    OmegaConf.update(changed, key, value, force_add=True)
    return changed


def _new_folder(config: DictConfig, several: bool) -> str | None:
    """Make a new folder where it is named by the time, and return its name for Hydra; else None."""
    from marlflow.config.folders import new_folder

    # Runs that start in the same second, such as a Slurm array's, would share a folder otherwise.
    key, template = _folder_key(several), _folder_template(config, several)
    if _TIME.search(template) is None:
        return None
    now = time.localtime()
    template = _TIME.sub(lambda match: time.strftime(match[1], now), template)
    folder = Path(OmegaConf.select(_with_value(config, key, template), key))
    return template + new_folder(folder).name.removeprefix(folder.name)


def quoted(value: str) -> str:
    """Quote for Hydra's command line; interpolations `${...}` keep their meaning."""
    return "'" + value.replace("'", "\\'") + "'"


def _unused_folders(overrides: Sequence[str], several: bool) -> Iterator[str]:
    """Yield the folders that Hydra would ignore: a single run's in a sweep, and the reverse."""
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if several and key == "hydra.run.dir":
            yield (
                f"{override} is the folder of a single run; with -m write hydra.sweep.dir={value}, which has a folder "
                "for each job, by its number or as hydra.sweep.subdir says"
            )
        elif not several and key in ("hydra.sweep.dir", "hydra.sweep.subdir"):
            yield f"{override} is for several jobs, and there is no -m; write hydra.run.dir=<folder>"


def _sweep_problems(config: DictConfig) -> Iterator[str]:
    # Other sweepers, such as Optuna's, choose jobs by the objective.
    sweeper = str(config.hydra.sweeper._target_)
    if sweeper != _GRID_SWEEPER and config.get("objective") is None:
        yield (
            f"the sweeper {sweeper.rpartition('.')[2]} goes by a figure of each job, and objective is null; set "
            "objective=policies.<id>.return_mean, or leave hydra/sweeper out to run all values"
        )


def hand_to_hydra(words: Sequence[str], job: Callable[[DictConfig], float | None]) -> None:
    """Run Hydra's own command line, which composes each job and calls `job`; raises what `job` raises."""
    with _hydra_arguments(words):
        try:
            hydra.main(version_base="1.3", config_path=f"pkg://{MODULE}", config_name=NAME)(job)()
        except HydraException as error:
            raise ConfigInvalid([composition_problem(error)]) from error


@contextmanager
def _hydra_arguments(words: Sequence[str]) -> Iterator[None]:
    # Hydra reads sys.argv, and with HYDRA_FULL_ERROR raises a job's exception instead of exiting.
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["marlflow", *words]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def _run_dir() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def _train_job(config: DictConfig) -> Result:
    from marlflow.config.folders import existing_run_problems
    from marlflow.config.schema import from_config
    from marlflow.driver.train import train

    run_dir = _run_dir()
    if problems := list(existing_run_problems(run_dir)):  # first: whatever is logged goes to a file in it
        raise ConfigInvalid(problems)
    return train(from_config(config), run_dir, files=recorded(config))


def recorded(config: DictConfig) -> dict[str, str]:
    """Return a run's configuration files, as Hydra would write them, with this user's signature."""
    # Hydra itself would write them before the run is checked, over an existing run's files.
    hydra_config: Any = HydraConfig.instance().cfg
    files = {"config": config, "hydra": hydra_config, "overrides": hydra_config.hydra.overrides.task}
    return signed({f".hydra/{name}.yaml": OmegaConf.to_yaml(content) for name, content in files.items()})


def outcome(result: Result) -> float | None:
    """Return a run's objective, for sweepers; raises KeyboardInterrupt or Terminated if a signal ended it."""
    from marlflow.driver.graceful_shutdown import REASONS

    if result.stopped_by in REASONS:  # the run ended in order, but an interrupted sweep runs no further job
        raise REASONS[result.stopped_by]
    return result.objective
