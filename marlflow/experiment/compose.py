"""Composes a configuration with Hydra, from Python as on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

MODULE = "marlflow.conf"
NAME = "train"


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
