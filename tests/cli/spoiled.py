"""What may be wrong with the folder of a run, for commands that read it: each refuses it and touches nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.conftest import Marlflow, content

Spoilt = tuple[Callable[[Path], Any], list[str], list[str]]
"""What is done to the folder, the words after the command, and what the error has."""


def nothing(run: Path) -> None:
    """Leaves the run as it is."""


def without_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")


def without_any_checkpoint(run: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        shutil.rmtree(path)


def cut_off(name: str) -> Callable[[Path], None]:
    """Take the last byte of this file of each checkpoint."""

    def spoil(run: Path) -> None:
        for path in (run / "checkpoints").glob(f"*/{name}"):
            path.write_bytes(path.read_bytes()[:-1])

    return spoil


def assert_refused_untouched(marlflow: Marlflow, command: str, case: Spoilt, run: Path) -> None:
    """One clear error, and every file in and beside the run is as it was."""
    spoil, words, messages = case
    spoil(run)
    before = content(run.parent)
    marlflow(command, *words).assert_refused(*messages)
    assert content(run.parent) == before
