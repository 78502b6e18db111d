"""Imports JAX: with XLA on one thread of the CPU, and with a cache of compiled programs in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import warnings
from functools import cache
from pathlib import Path

from marlflow.base.allocator import keep_freed_memory
from marlflow.base.files import cache_folder

_FLAGS = ("--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1")
"""One thread, as torch has in each process; a user's own settings of the same flags are not replaced."""
_TESTED = "0.10"
_CACHE_BYTES = 2**30


@cache
def problem() -> str:
    """Import JAX; return why nothing can be compiled by it, in one sentence, or ""."""
    given = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in _FLAGS if flag.partition("=")[0].lstrip("-") not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *missing]).strip()
    os.environ.setdefault("NPROC", "1")
    # A build for GPUs looks for one otherwise, and reserves most of its memory.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Before XLA has threads.
    keep_freed_memory()
    try:
        import jax

        jax.devices("cpu")
        # The warning does not apply: processes that marlflow forks call exec, or use no JAX.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called.*JAX", RuntimeWarning)
        # marlflow waits for each call at once, so a thread for the call would only add latency.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    except ImportError as error:
        return f"jax cannot be imported ({error}); pip install 'jax>={_TESTED},<0.11'"
    except RuntimeError as error:
        return f"jax finds no CPU to compile for: {error}"
    if not jax.__version__.startswith(f"{_TESTED}."):
        needed = f"is not {_TESTED}, for which marlflow compiles; pip install 'jax>={_TESTED},<0.11'"
        return f"jax {jax.__version__} {needed}"
    return ""


@cache
def cache_problem() -> str:
    """Turn the cache of compiled programs on; return why there is none, or "". Call after `problem`."""
    import jax

    # A folder that the user has set is not replaced.
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return ""
    folder = _cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = folder / f".{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return f"compiled programs are not kept for the next run: {error.strerror or error} ({folder})"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_max_size", _CACHE_BYTES)
    return ""


def _cache_folder() -> Path:
    """Return the folder of this kind of machine: a program is of one processor's instructions."""
    try:
        described = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        described = platform.processor()
    machine = hashlib.sha256(f"{platform.machine()} {described}".encode()).hexdigest()[:12]
    return cache_folder("xla") / machine
