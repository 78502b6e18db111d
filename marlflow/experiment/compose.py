"""Composes a configuration with Hydra, from Python as on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

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


def composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration with Hydra's own node; raises Hydra's errors. To be called while `composing`."""
    config = hydra.compose(NAME, overrides=list(overrides), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    return config
