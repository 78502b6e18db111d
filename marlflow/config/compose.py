"""Composes a configuration with Hydra, from Python as on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import configure_log
from hydra.core.utils import run_job as hydra_run_job
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, read_write

MODULE = "marlflow.conf"
NAME = "train"
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def _run_name(choice: str, *, _parent_: DictConfig) -> str:
    """The name of a run in the environment that was chosen; of `env=python` the import path that it was given.

    `_parent_` is the configuration, from OmegaConf.
    """
    target = str(OmegaConf.select(_parent_, "env._target_")) if choice == "python" else ""
    return target if _IMPORT_PATH.fullmatch(target) else choice


OmegaConf.register_new_resolver("run_name", _run_name, replace=True)


@contextmanager
def composing() -> Iterator[None]:
    """Hydra knows marlflow's configuration groups in here."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_module(MODULE, job_name="marlflow", version_base="1.3"):
        yield


def choices(overrides: Sequence[str]) -> set[str]:
    """The choices of configuration groups that these overrides lead to, as `group` or `group@package`.

    Reads the defaults lists and composes nothing. Raises Hydra's errors. To be called while `composing`.
    """
    found = config_loader().compute_defaults_list(NAME, list(overrides), RunMode.RUN).overrides.known_choices
    return {str(key) for key in found if not str(key).startswith("hydra/")}


def composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration with Hydra's own node; raises Hydra's errors. To be called while `composing`."""
    config = hydra.compose(NAME, overrides=list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    return config


def set_values(config: DictConfig, values: Sequence[str], task: Sequence[str]) -> None:
    """Applies overrides of values to a configuration that was composed of all others, as Hydra would have done then.

    `task` are all overrides of the job, which the configuration records. Raises Hydra's errors. Values depend on what
    is there (see overrides.py) and change no choice of a group, so nothing has to be composed again. To be called while
    `composing`.
    """
    parser = OverridesParser.create(config_loader())
    ConfigLoaderImpl._apply_overrides_to_config(parser.parse_overrides(list(values)), config)
    with read_write(config.hydra):
        job = config.hydra.job
        config.hydra.overrides.task = list(task)
        job.override_dirname = get_overrides_dirname(
            overrides=parser.parse_overrides(list(task)),
            kv_sep=job.config.override_dirname.kv_sep,
            item_sep=job.config.override_dirname.item_sep,
            exclude_keys=job.config.override_dirname.exclude_keys,
        )
    HydraConfig.instance().set_config(config)


def config_loader() -> Any:
    """Hydra's own; to be called while `composing`."""
    return GlobalHydra.instance().config_loader()


def run_job(config: DictConfig, folder: str | None, task: Callable[[DictConfig], object]) -> None:
    """Runs `task` as a job of Hydra with a configuration that is composed already; raises what it raises.

    Hydra's command line would compose it again, twice. All else is as there: logging, callbacks, environment variables,
    the working directory. `folder` replaces hydra.run.dir.
    """
    raised: list[BaseException] = []

    def watched(job_config: DictConfig) -> None:
        try:
            task(job_config)
        except Exception as error:  # noqa: BLE001  raised again below: Hydra would print a line of its own
            raised.append(error)

    with composing(), read_write(config.hydra):
        config.hydra.mode = RunMode.RUN
        if folder is not None:
            config.hydra.run.dir = folder
            config.hydra.overrides.hydra.append(f"hydra.run.dir={folder}")
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        callbacks = Callbacks(config)
        context = HydraContext(config_loader=config_loader(), callbacks=callbacks)
        callbacks.on_run_start(config=config, config_name=NAME)
        ended = hydra_run_job(watched, config, "hydra.run.dir", None, context)
        callbacks.on_run_end(config=config, config_name=NAME, job_return=ended)
    if raised:
        raise raised[0]
