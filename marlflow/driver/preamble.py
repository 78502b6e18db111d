"""The header of run.log: versions, command line, and complete configuration."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from functools import cache
from importlib import metadata

import yaml

from marlflow.config.description import describe
from marlflow.config.experiment import Experiment

_PACKAGES = (
    "ray",
    "torch",
    "numpy",
    "gymnasium",
    "pettingzoo",
    "supersuit",
    "hydra-core",
    "mpe2",
    "open_spiel",
)


def preamble(experiment: Experiment) -> list[str]:
    """Return the header's messages."""
    return [
        f"versions: {_versions()}; {platform.platform()}, {os.cpu_count()} CPUs",
        f"command: {shlex.join(sys.orig_argv)}, in {os.getcwd()}",
        f"configuration:\n{as_yaml(experiment).rstrip()}",
    ]


@cache
def _versions() -> str:
    versions = [f"marlflow {metadata.version('marlflow')}", f"python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(versions)


def as_yaml(experiment: Experiment) -> str:
    """Return an experiment as a configuration file, with all defaults.

    A value that no configuration can express, such as a nested function, is shown by its name.
    """
    return yaml.safe_dump(describe(experiment).values, sort_keys=False, allow_unicode=True, width=120)
