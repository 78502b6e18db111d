"""Imports JaxMARL: quietly, and with XLA on one thread."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# A worker has one core. XLA reads both when it starts, which the import of jaxmarl makes it do.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
os.environ.setdefault("NPROC", "1")
# Policies of workers act on the CPU, and jax would reserve most of a GPU for each worker.
os.environ.setdefault("JAX_PLATFORMS", "cpu")


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

make = jaxmarl.make
registered_envs: Sequence[str] = jaxmarl.registered_envs
