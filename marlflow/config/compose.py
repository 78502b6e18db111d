"""Compose configurations with Hydra, and run jobs and Hydra's own command line with them.

All that marlflow uses of Hydra beyond its public names is here; it was tried with Hydra 1.3.2 and OmegaConf 2.3.0.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import configure_log
from hydra.core.utils import run_job as hydra_run_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, read_write
from yaml import MarkedYAMLError

from marlflow.base.errors import ConfigInvalid
from marlflow.config.target_nodes import IMPORT_PATH

MODULE = "marlflow.conf"
NAME = "train"
SUITE = "suite"
"""The group of benchmark suites, which are no part of an experiment."""
_NOT_OF_A_RUN = ("hydra", SUITE)
SWEEPER_PARAMS = "hydra.sweeper.params"
GRID_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
"""The sweeper that runs all values, unless another one is chosen."""


def _run_name(choice: str, *, _parent_: DictConfig) -> str:
    # OmegaConf passes the node that contains the interpolation, here the whole configuration.
    if choice == "pettingzoo":
        return str(OmegaConf.select(_parent_, "env.id", throw_on_missing=False) or choice).rpartition("/")[2]
    target = str(OmegaConf.select(_parent_, "env._target_")) if choice == "python" else ""
    return target if IMPORT_PATH.fullmatch(target) else choice


OmegaConf.register_new_resolver("run_name", _run_name, replace=True)


@contextmanager
def composing() -> Iterator[None]:
    """Make marlflow's configuration groups known to Hydra."""
    # Hydra refuses to be initialized twice in one process.
    GlobalHydra.instance().clear()
    with hydra.initialize_config_module(MODULE, job_name="marlflow", version_base="1.3"):
        set_optuna_defaults()  # now that Hydra has loaded its plugins
        yield


@dataclass(frozen=True)
class Groups:
    """List configuration groups, their options, and choices among them. Use it within one `composing`.

    `hydra_own` are overrides of Hydra's own settings, of which hydra.searchpath adds folders.
    """

    hydra_own: list[str]

    @cached_property
    def _files(self) -> Any:
        # Hydra would make one for each question, and read the files again.
        return config_loader()._parse_overrides_and_create_caching_repo(NAME, self.hydra_own)[1]

    def options(self, group: str) -> list[str]:
        """Return the options of a group; none if there is no such group."""
        return list(self._files.get_group_options(group, ObjectType.CONFIG))

    def file(self, path: str) -> DictConfig:
        """Return a file of a group, `<group>/<option>`, as it is written."""
        content = self._files.load_config(path).config
        assert isinstance(content, DictConfig)
        return content

    def names(self) -> list[str]:
        """Return the groups of which an experiment is composed."""
        return [name for name in self._files.get_group_options("", ObjectType.GROUP) if name not in _NOT_OF_A_RUN]

    def choices(self, overrides: Sequence[str]) -> set[str]:
        """Return the group choices of `overrides`, as `group` or `group@package`, without composing.

        Raises Hydra's errors.
        """
        parsed = OverridesParser.create(config_loader()).parse_overrides([*self.hydra_own, *overrides])
        defaults = create_defaults_list(self._files, NAME, parsed, prepend_hydra=True, skip_missing=False)
        return {str(key) for key in defaults.overrides.known_choices if not str(key).startswith("hydra/")}


def composed(overrides: Sequence[str]) -> DictConfig:
    """Compose a configuration, with Hydra's own node; raise Hydra's errors. Call within `composing`."""
    config = hydra.compose(NAME, overrides=list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    return config


def sweeper_params(config: DictConfig) -> list[str]:
    """Return the parameters of the sweeper that a configuration names, as overrides `key=values`."""
    params: Any = OmegaConf.select(config, SWEEPER_PARAMS)
    return [f"{key}={value}" for key, value in (params or {}).items()]


def set_values(config: DictConfig, values: Sequence[str], task: Sequence[str]) -> None:
    """Apply value overrides to a composed configuration, without composing again.

    `task` lists all overrides of the job, for its record. Raises Hydra's errors. Call within `composing`.
    """
    parser = OverridesParser.create(config_loader())
    # Composing again would take as long as the first time, and value overrides change no choice of a group.
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
    """Return Hydra's config loader. Call within `composing`."""
    return GlobalHydra.instance().config_loader()


def composition_problem(error: BaseException) -> str:
    """Summarize an error of Hydra and its causes in one sentence."""
    sentences = []
    current: BaseException | None = error
    while current is not None:
        text = str(current)
        if isinstance(current, MarkedYAMLError) and current.problem:
            # The whole text begins with the place where the reader of YAML began, which may be far above.
            text = " ".join(f"{current.problem} {current.problem_mark or ''}".split())
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        # OmegaConf appends lines about its own objects, Hydra advice on its own syntax and search path.
        sentences += [
            line for line in lines[:2] if not re.match(r"full_key|object_type|To append|Config search path", line)
        ]
        current = current.__cause__
    return "the configuration cannot be composed: " + "; ".join(dict.fromkeys(sentences))


def run_job(config: DictConfig, folder: str | None, task: Callable[[DictConfig], object]) -> None:
    """Run `task` as a Hydra job with a composed configuration; raise its error.

    All else is as on Hydra's command line, such as logging and the working directory. `folder` replaces hydra.run.dir.
    """
    raised: list[BaseException] = []

    def watched(job_config: DictConfig) -> None:
        try:
            task(job_config)
        except Exception as error:  # noqa: BLE001  raised again below: Hydra would print a line of its own
            raised.append(error)

    # This is hydra.main without its composition, which would repeat what is composed already.
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


PLUGIN = "hydra_plugins.hydra_optuna_sweeper"


def set_optuna_defaults() -> None:
    """Store `hydra/sweeper=optuna` again with defaults of marlflow's, if the plugin is installed."""
    # A file of the same name in conf/ would be refused by Hydra: the plugin's own has a defaults list.
    if not is_installed(PLUGIN):
        return
    from hydra_plugins.hydra_optuna_sweeper import config

    store = ConfigStore.instance().store
    # One trial at a time knows all earlier results; the plugin's own default suggests two without the other's.
    sweeper = config.OptunaSweeperConf(direction=config.Direction.maximize, n_jobs=1, max_failure_rate=1.0)
    store(group="hydra/sweeper", name="optuna", node=sweeper, provider="marlflow")
    samplers = {
        "tpe": config.TPESamplerConfig,
        "random": config.RandomSamplerConfig,
        "cmaes": config.CmaEsSamplerConfig,
        "nsgaii": config.NSGAIISamplerConfig,
    }
    for name, sampler in samplers.items():
        store(group="hydra/sweeper/sampler", name=name, node=sampler(seed=0), provider="marlflow")


def is_installed(plugin: str) -> bool:
    """Return whether a plugin of Hydra, by its import path, is installed."""
    try:
        return find_spec(plugin) is not None
    except ModuleNotFoundError:
        return False


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
