"""Imports JaxMARL quietly."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def _streams_kept() -> Iterator[None]:
    """Mute the block, and restore sys.stdout and sys.stderr."""
    kept = {name: getattr(sys, name) for name in ("stdout", "stderr", "__stdout__", "__stderr__")}
    muted = io.StringIO()
    try:
        for name in ("stdout", "__stdout__"):
            setattr(sys, name, muted)
        yield
    finally:
        for name, stream in kept.items():
            setattr(sys, name, stream)


# It prints which of its environments are not installed, after setting sys.stdout to sys.__stdout__.
with _streams_kept():
    import jaxmarl
    from jaxmarl.environments.overcooked import overcooked_layouts
    from jaxmarl.environments.smax.heuristic_enemy_smax_env import EnemySMAX
    from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO, SMAX

make = jaxmarl.make
registered_envs: Sequence[str] = jaxmarl.registered_envs
SMAX_CLASSES = SMAX, EnemySMAX

__all__ = ["MAP_NAME_TO_SCENARIO", "SMAX_CLASSES", "make", "overcooked_layouts", "registered_envs"]
