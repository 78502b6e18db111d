"""Makes the recorded environment, for evaluation in offline runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.env.make import make_environment
from marlflow.offline.manifest import RecordedEnvironment, read_manifest, wrappers_of


def recorded_environment(folder: str, passes: int = 1) -> Any:
    """Make the environment recorded in `folder`; raises ConfigInvalid if impossible."""
    # Configured next to `folder`, but used by the workers that read the dataset.
    del passes
    environment = known_environment(Path(folder))
    return make_environment(environment.factory, environment.arguments, wrappers_of(environment))


def known_environment(folder: Path) -> RecordedEnvironment:
    """Return how to make the environment recorded in `folder`; raises ConfigInvalid if that is not known."""
    environment = read_manifest(folder).environment
    if environment.unknown:
        raise ConfigInvalid([f"the environment recorded in {folder} cannot be made again: {environment.unknown}"])
    return environment
