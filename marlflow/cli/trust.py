"""The option --trust: without it, names outside marlflow in another user's run are listed, not imported."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from marlflow.base.errors import ConfigInvalid
from marlflow.config.trust import names_outside

TRUST: Final = "--trust"
_HYDRA_KEY = re.compile(r"[+~]*hydra\b")


def check_overrides(run_dir: Path, overrides: Sequence[str]) -> None:
    """Raise ConfigInvalid if an override configures Hydra itself."""
    # Hydra imports what such an override names before any check.
    if names := [override for override in overrides if _HYDRA_KEY.match(override)]:
        raise _untrusted(run_dir, names)


def check_names(run_dir: Path, config: Any) -> None:
    """Raise ConfigInvalid with every name outside marlflow that a configuration would import."""
    if names := sorted(names_outside(config)):
        raise _untrusted(run_dir, names)


def _untrusted(run_dir: Path, names: Sequence[str]) -> ConfigInvalid:
    return ConfigInvalid(
        [
            f"{run_dir} was not written by this user on this machine, or was changed since, and its configuration "
            f"names code outside marlflow, which would be imported: {', '.join(names)}; look at it, and if you trust "
            f"it add {TRUST}"
        ]
    )
