"""Check the sweeper and the launcher of `marlflow train -m` before the first job begins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marlflow.config.optuna_defaults import PLUGIN, is_installed
from marlflow.config.overrides import Prepared

_GRID_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
# Choices of Hydra's groups, with the plugin and the extra that they come with.
_PLUGINS = {
    "hydra/sweeper=optuna": (PLUGIN, "optuna"),
    "hydra/launcher=joblib": ("hydra_plugins.hydra_joblib_launcher", "joblib"),
    "hydra/launcher=submitit_local": ("hydra_plugins.hydra_submitit_launcher", "submitit"),
    "hydra/launcher=submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "submitit"),
}
_DIRECTIONS = ("maximize", "minimize")


def optimizes(config: DictConfig) -> bool:
    """Return whether the sweeper chooses values by the objectives of earlier jobs."""
    return str(config.hydra.sweeper._target_) != _GRID_SWEEPER


def extra_problems(overrides: Sequence[str]) -> Iterator[str]:
    """Yield a problem for each sweeper or launcher that is not installed; before Hydra looks for it."""
    for override in overrides:
        choice = override.lstrip("+").replace(" ", "")
        if choice in _PLUGINS and not is_installed(_PLUGINS[choice][0]):
            plugin, extra = _PLUGINS[choice]
            name = plugin.rpartition(".")[2].replace("_", "-")
            yield f"{choice} needs {name}, which is not installed: pip install 'marlflow[{extra}]'"


def sweep_problems(ready: Prepared) -> Iterator[str]:
    """Yield what is wrong with a sweep as a whole."""
    config = ready.config
    sweeper = str(config.hydra.sweeper._target_).rpartition(".")[2]
    if not optimizes(config):
        for interval in ready.intervals:
            yield (
                f"{interval} has no values to run one by one; list some, or have values chosen: "
                "hydra/sweeper=optuna, or marlflow tune"
            )
        return
    yield from objective_problems(config, f"the sweeper {sweeper}")
    if sweeper == "OptunaSweeper":
        yield from _optuna_problems(config.hydra.sweeper)


def objective_problems(config: DictConfig, chooser: str) -> Iterator[str]:
    """Yield a problem if `chooser`, which goes by the objective of each job, would not have one."""
    if config.get("objective") is None:
        yield (
            f"{chooser} goes by a figure of each job, and objective is null; set "
            "objective=policies.<id>.return_mean, or policies.<id>.eval_return_mean, or run all values with "
            "marlflow train -m"
        )
    elif _is_never_evaluated(config):
        yield (
            f"objective={config.objective} is of evaluations, and there are none; set evaluation.final_episodes=20, "
            "or take return_mean, that of training"
        )


def _is_never_evaluated(config: DictConfig) -> bool:
    evaluation = OmegaConf.select(config, "evaluation")
    is_of_evaluation = str(config.objective).rpartition(".")[2].startswith("eval_")
    return is_of_evaluation and evaluation is not None and not (evaluation.episodes or evaluation.final_episodes)


def _optuna_problems(sweeper: Any) -> Iterator[str]:
    if getattr(sweeper.direction, "name", sweeper.direction) not in _DIRECTIONS:
        yield f"hydra.sweeper.direction must be maximize or minimize, not {sweeper.direction}: a run has one objective"
    for name in ("n_trials", "n_jobs"):
        if not isinstance(count := sweeper[name], int) or count < 1:
            yield f"hydra.sweeper.{name} must be at least 1, not {count}"
    rate = sweeper.max_failure_rate
    if not isinstance(rate, int | float) or not 0 <= rate <= 1:
        yield f"hydra.sweeper.max_failure_rate must be from 0 to 1, not {rate}"
    if re.match(r"\w+(\+\w+)?://", str(sweeper.storage or "")) and not str(sweeper.storage).startswith("redis"):
        yield from _database_problems(sweeper.storage)


def _database_problems(storage: str) -> Iterator[str]:
    # Optuna 2 relies on what SQLAlchemy 2 has removed, and Alembic from 1.14 on needs SQLAlchemy 2 in parts.
    too_new = [
        f"{package} {found}"
        for package, limit in (("SQLAlchemy", (2,)), ("alembic", (1, 14)))
        if (found := _version(package)) is not None and tuple(map(int, found.split(".")[:2])) >= limit
    ]
    if too_new:
        yield (
            f"hydra.sweeper.storage={storage}: this version of Optuna cannot write a database with "
            f"{' and '.join(too_new)}; pip install 'sqlalchemy<2' 'alembic<1.14', or leave storage out"
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
