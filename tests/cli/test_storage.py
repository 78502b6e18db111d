"""Disks that take nothing: each command says so in one sentence, and leaves no part of a file."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import marlflow as mf
from tests.cli.conftest import Marlflow, content, trained_in
from tests.cli.test_league import TRAINED
from tests.cli.test_links import COMMANDS

NEW = tuple(word for word in TRAINED if not word.startswith("hydra"))
WRITERS = {
    **{name: COMMANDS[name] for name in ("resume", "evaluate", "export", "league")},
    "a report": ("report", "run", "out=run/report"),
    "a member": ("league", "run", "--export", "player@1", "run/first.safetensors"),
    "a person's rows": ("play", "run", "as=player_0", "--record"),
    "a run": ("train", *NEW, "hydra.run.dir=run/new"),
    "a sweep": ("train", "-m", *NEW, "seed=1,2", "hydra.sweep.dir=run/new"),
    "recorded rows": ("train", *NEW, "+record.folder=run/rows"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has a league."""
    return trained_in(tmp_path_factory.mktemp("trained"), ["train", *TRAINED]) / "trained"


def mounted(*words: str) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user or machine mounts nothing: {done.stderr.strip()}")


@pytest.fixture(params=["full", pytest.param("read-only", marks=pytest.mark.slow)])
def disk(request: pytest.FixtureRequest, trained: Path, tmp_path: Path) -> Iterator[str]:
    """What the system says of a disk that has the run, and takes no more."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount")
    run = tmp_path / "run"
    run.mkdir()
    if request.param == "full":
        mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", str(run))
        shutil.copytree(trained, run, dirs_exist_ok=True)
        with pytest.raises(OSError, match="No space left"):
            (run / "rest").write_bytes(bytes(5 * 2**20))
    else:
        shutil.copytree(trained, run, dirs_exist_ok=True)
        mounted("-o", "bind,ro", str(run), str(run))
    yield "No space left on device" if request.param == "full" else "Read-only file system"
    subprocess.run(["umount", str(run)], check=True)


def test_every_command_says_so_in_one_sentence(
    disk: str, marlflow: Marlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(tmp_path / "run")
    for name, words in WRITERS.items():
        said = marlflow(*words)
        assert said.code in (1, 2), name
        errors = said.err.splitlines()
        assert [name for line in errors if "Traceback" in line] == []
        assert errors[-1].startswith("error: "), name
        assert disk in errors[-1], name
        assert content(tmp_path / "run") == before, name
    with pytest.raises(mf.InvalidInput, match=disk):
        mf.resume(mf.Experiment(mf.Env("cartpole_team")), tmp_path / "run")
    assert mf.load(tmp_path / "run").policies, "reading needs no room"


def refusing(number: int) -> Callable[..., object]:
    def refuse(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number), "/somewhere")

    return refuse


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
def test_a_resume_is_refused_first_whatever_the_disk_says(
    number: int, trained: Path, marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(trained)
    monkeypatch.setattr(tempfile, "mkdtemp", refusing(number))
    said = marlflow("resume", str(trained), "stop.env_steps=2200")
    assert said.code == 2
    assert said.err == (
        f"error: the run's directory: the folder {str(trained)!r} cannot be made or written to: {os.strerror(number)}; "
        "make it writable, or copy the run to a folder that is, and resume it there\n"
    )
    assert content(trained) == before


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "the disk is full: [Errno 28] No space left on device: '/somewhere'; free space there"),
        (errno.EDQUOT, "the disk quota is used up: [Errno 122] Disk quota exceeded: '/somewhere'; free space there"),
        (
            errno.EROFS,
            "nothing can be written: [Errno 30] Read-only file system: '/somewhere'; make the file system writable, or "
            "name another folder",
        ),
    ],
)
def test_a_disk_that_takes_no_more_later_is_one_sentence(
    number: int, text: str, trained: Path, marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlflow.html_report.report.render", refusing(number))
    said = marlflow("report", str(trained))
    assert (said.code, said.out, said.err) == (1, "", f"error: {text}\n")
