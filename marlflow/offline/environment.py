"""Makes the recorded environment, for evaluation in offline runs.

The manifest of records names code, so it is imported only if this user wrote it, or if the names are trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.env.make import make_environment
from marlflow.offline.manifest import NAME, RecordedEnvironment, read_manifest, wrappers_of


def recorded_environment(folder: str, passes: int = 1, trust: Sequence[str] = ()) -> Any:
    """Make the environment recorded in `folder`; raises ConfigInvalid if impossible.

    If the records are not this user's own, it is imported only if `trust` lists its factory and its wrappers.
    """
    # Configured next to `folder`, but used by the workers that read the dataset.
    del passes
    environment = known_environment(Path(folder), trust)
    return make_environment(environment.factory, environment.arguments, wrappers_of(environment))


def known_environment(folder: Path, trust: Collection[str]) -> RecordedEnvironment:
    """Return how to make the environment recorded in `folder`; raises ConfigInvalid if not known or not trusted."""
    manifest = read_manifest(folder)
    environment = manifest.environment
    if environment.unknown:
        raise ConfigInvalid([f"the environment recorded in {folder} cannot be made again: {environment.unknown}"])
    foreign = [] if manifest.is_own else [name for name in code_of(environment) if name not in trust]
    if foreign:
        raise ConfigInvalid(
            [
                f"{folder / NAME} was not written by this user on this machine, or was changed since, and it names "
                f"code: {', '.join(foreign):.500}; look at it, and if you trust it list these names in env.trust"
            ]
        )
    return environment


def code_of(environment: RecordedEnvironment) -> list[str]:
    """Return the import paths of an environment and its wrappers."""
    return [environment.factory, *(name for name, _ in environment.wrappers)]
