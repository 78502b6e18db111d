"""Makes the recorded environment, for evaluation in offline runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.env.make import make_environment
from marlflow.offline.manifest import read_manifest, wrappers_of


def recorded_environment(folder: str, passes: int = 1) -> Any:
    """Make the environment recorded in `folder`; raises ConfigInvalid if impossible."""
    # Configured next to `folder`, but used by the workers that read the dataset.
    del passes
    environment = read_manifest(Path(folder)).environment
    if environment.unknown:
        raise ConfigInvalid([f"the environment recorded in {folder} cannot be made again: {environment.unknown}"])
    return make_environment(environment.factory, environment.arguments, wrappers_of(environment))
