"""How the C library allocates memory, where large arrays are made and freed again and again."""

from __future__ import annotations

import ctypes
import os

# Parameters of mallopt, as malloc.h numbers them.
_ONE_GIB = 2**30
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> None:
    """Keep freed memory in this process for its next arrays; call it on the main thread, before it starts others.

    By default, glibc returns arrays of more than 32 MiB to the operating system at once, which clears their pages anew
    for the next ones: a third of the time of an update on large minibatches. A user's own settings of glibc in the
    environment (`MALLOC_...`, `GLIBC_TUNABLES`) are not replaced, and other C libraries and glibc before 2.35 are left
    alone.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # glibc before 2.35 refuses this threshold, and the others alone would keep it from adapting to what is allocated.
    if mallopt is not None and mallopt(_MMAP_THRESHOLD, _ONE_GIB):
        mallopt(_TRIM_THRESHOLD, 2 * _ONE_GIB - 1)
        mallopt(_ARENA_MAX, 1)
