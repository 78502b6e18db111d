"""Tab completion in the shells themselves, where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Marlflow

pytestmark = pytest.mark.slow

LINES = {
    "marlflow tra": {"train"},
    "marlflow train env=simple_sp": {"env=simple_speaker_listener", "env=simple_spread"},
    "marlflow evaluate run --epi": {"--episodes"},
    "marlflow evaluate fol": {"folder_of_a_run"},
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With `marlflow` as a command, whatever is installed here, and a folder that files are completed in."""
    (tmp_path / "folder_of_a_run").mkdir()
    (folder := tmp_path / "bin").mkdir()
    program = folder / "marlflow"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nfrom marlflow.cli.main import main\nsys.exit(main())\n", encoding="utf-8"
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "TERM": "dumb"}


def _needs(shell: str) -> str:
    if (path := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    return path


def _ran(words: list[str], environment: dict[str, str], tmp_path: Path) -> str:
    ran = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_bash(environment: dict[str, str], tmp_path: Path) -> None:
    asks = [
        f"COMP_LINE='{line}'; COMP_CWORD={len(line.split()) - 1}; hydra_bash_completion; "
        'compopt() { :; }; echo "${COMPREPLY[@]}"'
        for line in list(LINES)[:3]
    ]
    script = "; ".join(['eval "$(marlflow -sc install=bash)"', *asks])
    printed = _ran([_needs("bash"), "--norc", "-c", script], environment, tmp_path)
    assert [set(line.split()) for line in printed.splitlines()] == list(LINES.values())[:3]


def test_fish(environment: dict[str, str], tmp_path: Path) -> None:
    asks = [f"complete -C '{line}'; echo end" for line in LINES]
    script = "; ".join(["marlflow -sc install=fish | source", *asks])
    printed = _ran([_needs("fish"), "--no-config", "-c", script], environment, tmp_path)
    offered = [{line.split("\t")[0].rstrip("/") for line in part.split()} for part in printed.split("end\n")[:-1]]
    assert offered == list(LINES.values())


# zsh completes only what is typed into a terminal. Ctrl-X then says what the line has become, and empties it.
_REPORT = 'zle-report() { print -r -- "$BUFFER" >> typed; BUFFER=""; print -n "repor"; print -n "ted" }'
_SETUP = [
    "PS1=; unsetopt beep; autoload -Uz compinit; compinit -u -D",
    'eval "$(marlflow -sc install=zsh)"',
    f'{_REPORT}; zle -N zle-report; bindkey "^X" zle-report',
    "print -n rea; print dy",
]


def test_zsh(environment: dict[str, str], tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    shell = pexpect.spawn(
        _needs("zsh"), ["-f", "-i"], cwd=tmp_path, env={**environment, "TERM": "xterm"}, timeout=60, echo=False
    )
    try:
        for line in _SETUP:
            shell.sendline(line)
        shell.expect_exact("ready")
        for line in [
            "marlflow tra",
            "marlflow train env=simple_spe",
            "marlflow evaluate run --epi",
            "marlflow evaluate fol",
        ]:
            shell.send(f"{line}\t\x18")
            shell.expect_exact("reported")
    finally:
        shell.close(force=True)
    assert [line.rstrip() for line in (tmp_path / "typed").read_text(encoding="utf-8").splitlines()] == [
        "marlflow train",
        "marlflow train env=simple_speaker_listener",
        "marlflow evaluate run --episodes",
        "marlflow evaluate folder_of_a_run/",
    ]


@pytest.mark.parametrize("words", [["install=tcsh"], []])
def test_other_shells_are_refused(words: list[str], marlflow: Marlflow) -> None:
    said = marlflow("--shell-completion", *words)
    assert said.code == 2
    assert said.err.startswith(
        "error: --shell-completion needs a shell: install=bash, install=zsh or install=fish, not "
    )
