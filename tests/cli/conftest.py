"""Runs the command line in this process, in a folder of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from marlflow.cli.main import main


@dataclass(frozen=True)
class Said:
    """What a command printed and returned."""

    code: int
    out: str
    err: str


Marlflow = Callable[..., Said]


@pytest.fixture
def marlflow(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Marlflow:
    """`marlflow("plan", "env=simple_tag")`."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Said:
        capfd.readouterr()
        code = main(list(words))
        return Said(code, *capfd.readouterr())

    return run
