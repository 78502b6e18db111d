"""How the C library allocates memory, where large arrays are made and freed again and again."""

from __future__ import annotations

import ctypes
import os

# Parameters of mallopt, as malloc.h numbers them, with their values.
_ONE_GIB = 2**30
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_OPTIONS = {_MMAP_THRESHOLD: _ONE_GIB, _TRIM_THRESHOLD: 2 * _ONE_GIB - 1, _ARENA_MAX: 1}


def keep_freed_memory() -> None:
    """Keep freed memory in this process for its next arrays; call before threads that allocate are started.

    By default, glibc returns arrays of more than 32 MiB to the operating system at once, which clears their pages anew
    for the next ones: a third of the time of an update on large minibatches. A user's own settings of glibc in the
    environment (`MALLOC_...`, `GLIBC_TUNABLES`) are not replaced, and other C libraries are left alone.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in _OPTIONS.items():
            mallopt(option, value)
