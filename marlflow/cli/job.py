"""From arguments to a composed configuration, and from a result to its objective, for all commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from marlflow.cli.arguments import Words
from marlflow.config.cluster_address import cluster_address
from marlflow.config.compose import composing
from marlflow.config.overrides import Prepared, prepare
from marlflow.config.trust import signed
from marlflow.observe.first_lines import first_lines
from marlflow.runtime.forked import template

if TYPE_CHECKING:
    from marlflow.config.checked import CheckedExperiment
    from marlflow.driver.train import Result

ALL_OUTPUT = "--all-output"
"""The flag of commands that try an environment; without it, they show some of what it prints."""
_LINES = 20


def prepared(words: Words) -> Prepared:
    """Return the overrides in Hydra's form and the first job's configuration; raises ConfigInvalid."""
    searchpath = [f"file://{Path(folder).resolve()}" for folder in words.config_dirs]
    with composing():
        return prepare(words.overrides, searchpath, words.multirun)


def inline_by_default(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a job that runs in one process, unless they choose a runtime."""
    named = any(override.lstrip("+").partition("=")[0] == "runtime" for override in overrides)
    return [*overrides, *([] if named else ["runtime=inline"])]


def output_shown(words: Words) -> AbstractContextManager[None]:
    """Redirect what an environment prints to standard error, all of it or the first lines."""
    return first_lines(sys.maxsize if ALL_OUTPUT in words.own_flags else _LINES)


def recorded(config: DictConfig) -> dict[str, str]:
    """Return a run's configuration files, as Hydra would write them, with this user's signature."""
    # Hydra itself would write them before the run is checked, over an existing run's files.
    hydra_config: Any = HydraConfig.instance().cfg
    files = {"config": config, "hydra": hydra_config, "overrides": hydra_config.hydra.overrides.task}
    return signed({f".hydra/{name}.yaml": OmegaConf.to_yaml(content) for name, content in files.items()})


def discard_unless_used(checked: CheckedExperiment, several: bool = False) -> None:
    """End the template of workers that `main` began, unless this process starts a private Ray next."""
    runtime = checked.experiment.runtime
    if several or runtime.name == "inline" or cluster_address(runtime) is not None:
        template.discard()


def outcome(result: Result) -> float | None:
    """Return a run's objective, for sweepers; raises KeyboardInterrupt or Terminated if a signal ended it."""
    from marlflow.driver.graceful_shutdown import REASONS

    if result.stopped_by in REASONS:  # the run ended in order, but an interrupted sweep runs no further job
        raise REASONS[result.stopped_by]
    return result.objective
