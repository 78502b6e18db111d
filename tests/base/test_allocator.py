"""Freed memory stays in the process, so that the next large array has no pages to be cleared."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

CODE = """
import resource, sys
from marlflow.base.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    large = b"x" * (64 << 20)
    del large
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str, **environ: str) -> int:
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", CODE, how], env={**usual, **environ}, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def glibc() -> tuple[int, ...]:
    name, version = platform.libc_ver()
    return tuple(map(int, version.split("."))) if name == "glibc" else ()


@pytest.mark.skipif(glibc() < (2, 35), reason="what glibc can since 2.35")
def test_large_arrays_take_the_pages_of_freed_ones_but_not_against_the_users_settings() -> None:
    by_default = faults("default")
    # 20 times 64 MiB, cleared once and not 20 times.
    assert faults("kept") < by_default / 4
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="1000000") > by_default / 2
