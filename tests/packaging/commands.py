"""Runs commands in environments other than that of the tests."""

import os
import subprocess
from pathlib import Path

TIMEOUT_S = 300


def run(command: list[str], cwd: Path, timeout_s: float = TIMEOUT_S) -> str:
    """What the command printed; a failure shows all of it."""
    clean = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    ran = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert ran.returncode == 0, f"{' '.join(command)} ended with {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout
