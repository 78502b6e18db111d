"""The header of run.log: versions, command line, and complete configuration."""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import metadata
from typing import Any

import numpy as np
import yaml

from marlflow.config import experiment as sections
from marlflow.config.environment_arguments import KEYWORDS
from marlflow.config.experiment import ENV_KEYS, Env, Experiment, Stop
from marlflow.config.target_nodes import ARGS, PARTIAL, TARGET
from marlflow.env.make import Wrapper
from marlflow.learner.optimizer import TorchOptimizer
from marlflow.runtime import spec
from marlflow.sampling.mapping import Rule

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
    versions = [f"marlflow {metadata.version('marlflow')}", f"python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return [
        f"versions: {', '.join(versions)}; {platform.platform()}, {os.cpu_count()} CPUs",
        f"command: {shlex.join(sys.orig_argv)}, in {os.getcwd()}",
        f"configuration:\n{as_yaml(experiment).rstrip()}",
    ]


def as_yaml(experiment: Experiment) -> str:
    """Return an experiment as a configuration file, with all defaults.

    A value that no configuration can express, such as a nested function, is shown by its name.
    """
    return yaml.safe_dump(plain(experiment), sort_keys=False, allow_unicode=True, width=120)


def plain(value: Any) -> Any:
    """Return a value as numbers, strings, lists and mappings; objects by their `_target_`."""
    if value is None:
        return None
    if isinstance(value, np.generic):
        return plain(value.item())
    # safe_dump refuses subclasses, such as a str enum. bool comes first, as a subclass of int.
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {str(key): plain(element) for key, element in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(element) for element in value]
    if is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value)
    if isinstance(value, functools.partial):
        positional = {ARGS: plain(value.args)} if value.args else {}
        return {TARGET: plain(value.func), PARTIAL: True, **positional, **plain(value.keywords)}
    return _path(value) if hasattr(value, "__qualname__") else re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _dataclass(value: Any) -> dict[str, Any]:
    if isinstance(value, Env):
        named = plain(value.arguments)
        collide = {KEYWORDS: {key: named.pop(key) for key in ENV_KEYS if key in named}}
        keywords = collide if collide[KEYWORDS] else {}
        return {TARGET: plain(value.factory), **named, **keywords, **_fields(value, "factory", "arguments")}
    if isinstance(value, Stop):
        return {**_fields(value), "policies": {name: {"return_mean": goal} for name, goal in value.policies.items()}}
    if isinstance(value, Wrapper):
        return {TARGET: value.name, **plain(value.arguments)}
    if isinstance(value, TorchOptimizer):
        return {TARGET: plain(value.make), **plain(value.settings)}
    is_section = type(value).__module__ in (sections.__name__, spec.__name__) or isinstance(value, Rule)
    return _fields(value) if is_section else {TARGET: _path(type(value)), **_fields(value)}


def _fields(value: Any, *left_out: str) -> dict[str, Any]:
    return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name not in left_out}


def _path(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
