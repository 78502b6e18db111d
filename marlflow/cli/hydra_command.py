"""Hydra's own command line, for sweeps, options that only show something, and completion."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig

from marlflow.base.errors import ConfigInvalid
from marlflow.config.compose import MODULE, NAME, composition_problem


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
