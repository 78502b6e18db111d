"""Runs the command line in this process, in a folder of its own."""

import csv
from collections.abc import Callable, Sequence
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

    def assert_refused(self, *messages: str, begins: str = "") -> None:
        """One clear error that has all of `messages`, nothing else, and exit code 2."""
        assert (self.code, self.out) == (2, ""), self.err
        assert self.err.startswith(f"error: {begins}")
        for message in messages:
            assert message in self.err
        assert "Traceback" not in self.err


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


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files below a folder, and when each was written."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def trained_in(folder: Path, *commands: Sequence[str]) -> Path:
    """The folder in which these commands have been given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in commands:
            assert main(list(words)) == 0
    return folder
