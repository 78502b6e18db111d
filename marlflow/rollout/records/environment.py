"""The environment that was recorded, made again: what an offline run evaluates in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.env.make import make_environment
from marlflow.rollout.records.manifest import read_manifest, wrappers_of


def recorded_environment(folder: str, passes: int = 1) -> Any:
    """The environment whose records are in `folder`, of which each is handed out `passes` times.

    Raises ConfigInvalid if it cannot be made again.
    """
    del passes  # said beside the folder in a configuration, for whoever hands them out
    environment = read_manifest(Path(folder)).environment
    if environment.unknown:
        raise ConfigInvalid([f"the environment recorded in {folder} cannot be made again: {environment.unknown}"])
    return make_environment(environment.factory, environment.arguments, wrappers_of(environment))
