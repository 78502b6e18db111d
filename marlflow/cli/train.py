"""`marlflow train`: checks everything, then lets Hydra run the job, or with `-m` each of several."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.cli.arguments import split
from marlflow.cli.job import prepared
from marlflow.experiment.comments import explained
from marlflow.experiment.compose import MODULE, NAME
from marlflow.experiment.overrides import composition_problem

if TYPE_CHECKING:
    from marlflow.experiment.train import Result

_SWEEPS_ALL = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


def run_train(words: list[str]) -> int:
    """Trains; returns 0. Raises ConfigInvalid before anything starts, any other MarlflowError from the run."""
    found = split(words, "train")
    ready = prepared(found)
    if found.only_shows:
        if ready.problems:
            raise ConfigInvalid(ready.problems)
    else:
        _check(ready.config, ready.problems, found.multirun)
    shown = io.StringIO()
    with redirect_stdout(shown) if found.only_shows else nullcontext():
        hand_to_hydra([*found.hydra_flags, *ready.overrides], job, several=found.multirun)
    if found.shows_configuration:
        print(explained(shown.getvalue(), _as_written(ready.config)), end="")
    else:
        print(shown.getvalue(), end="")
    return 0


def _as_written(config: DictConfig) -> Any:
    """As plain dicts and lists, nothing in it resolved."""
    return OmegaConf.to_container(config)


def _check(config: DictConfig, problems: Sequence[str], several: bool) -> None:
    """The checks of a run, made before it has so much as a folder."""
    from marlflow.experiment.folders import folder_problems
    from marlflow.experiment.schema import read
    from marlflow.experiment.train import available_to, check

    found = list(problems)
    experiment = read(config, found)
    if several:
        found += _sweep_problems(config)
    folder = OmegaConf.select(config, "hydra.sweep.dir" if several else "hydra.run.dir")
    if not found:  # else it may be made of what is wrong
        found += folder_problems("the folder of the run", Path(folder))
    check(experiment, found, available_to(experiment))


def _sweep_problems(config: DictConfig) -> Iterator[str]:
    """A sweeper that chooses its jobs by what came of others, and nothing that it could go by."""
    sweeper = str(config.hydra.sweeper._target_)
    if sweeper != _SWEEPS_ALL and config.get("objective") is None:
        yield (
            f"the sweeper {sweeper.rpartition('.')[2]} goes by a figure of each job, and objective is null; set "
            "objective=policies.<id>.return_mean, or leave hydra/sweeper out to run all values"
        )


def hand_to_hydra(words: Sequence[str], job: Callable[[DictConfig], float | None], several: bool = False) -> None:
    """Runs Hydra's own command line on `words`, which calls `job`; raises what that raises.

    Of `several` jobs Hydra says itself which one failed, once all have run.
    """
    failed: list[MarlflowError] = []

    def only_job(config: DictConfig) -> None:
        try:
            job(config)
        except MarlflowError as error:
            failed.append(error)

    with _hydra_arguments(words):
        try:
            hydra.main(version_base="1.3", config_path=f"pkg://{MODULE}", config_name=NAME)(
                job if several else only_job
            )()
        except HydraException as error:
            raise ConfigInvalid([composition_problem(error)]) from error
    if failed:
        raise failed[0]


@contextmanager
def _hydra_arguments(words: Sequence[str]) -> Iterator[None]:
    """Hydra reads sys.argv; and without this variable it prints a job's exception and exits instead of raising it."""
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


def job(config: DictConfig) -> float | None:
    """One run; the figure that `objective` names, for sweepers."""
    from marlflow.experiment.schema import from_config
    from marlflow.experiment.train import train

    return outcome(lambda: train(from_config(config), HydraConfig.get().runtime.output_dir))


def outcome(run: Callable[[], Result]) -> float | None:
    """What comes of a run; KeyboardInterrupt or Terminated if a signal ended it, and what it raises."""
    from marlflow.experiment.interrupt import REASONS

    result = run()
    if result.stopped_by in REASONS:  # in order, but whoever interrupted wants no further job either
        raise REASONS[result.stopped_by]
    return result.objective
