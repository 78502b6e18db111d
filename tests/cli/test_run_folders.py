"""Each run has a folder of its own, and a run that is refused changes nothing in that of another."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from marlflow.runs.run_state import LOCK
from tests.cli.conftest import Marlflow, content
from tests.cli.test_resume import overrides
from tests.cli.test_train import SHORT

WORDS = (*SHORT, "rollouts.fragment_env_steps=100")
OTHER = "default_policy.algorithm.learning_rate=0.5"


def test_a_refused_run_changes_nothing_in_the_run_that_is_there(marlflow: Marlflow, tmp_path: Path) -> None:
    words = ("train", *WORDS, "hydra.run.dir=run")
    assert marlflow(*words).code == 0
    before = content(tmp_path / "run")
    said = marlflow(*words, OTHER)
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "error: there is a run in run already; continue it with `marlflow resume run`, or choose another directory\n"
    )
    assert content(tmp_path / "run") == before


def test_a_run_is_refused_where_another_is_starting(marlflow: Marlflow, tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    lock = os.open(run / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the process holds it that has started there
        said = marlflow("train", *WORDS, "hydra.run.dir=run")
    finally:
        os.close(lock)
    assert said.code == 2
    assert said.err == (
        f"error: another process is running in {run}; choose another directory for this run, or interrupt it\n"
    )
    assert [path.name for path in run.iterdir()] == [LOCK]


def test_the_jobs_of_a_refused_sweep_change_nothing_either(marlflow: Marlflow, tmp_path: Path) -> None:
    words = ("train", "-m", *WORDS, "seed=1,2", "hydra.sweep.dir=several")
    assert marlflow(*words).code == 0
    before = content(tmp_path / "several")
    assert marlflow(*words, OTHER).code == 2
    assert content(tmp_path / "several") == before


def test_a_job_of_a_sweep_is_refused_before_it_writes_where_only_that_one_is_taken(
    marlflow: Marlflow, tmp_path: Path
) -> None:
    sweep = ("train", "-m", *WORDS, "hydra.sweep.dir=several", "hydra.sweep.subdir=seed_${seed}")
    assert marlflow(*sweep, "seed=2").code == 0
    before = content(tmp_path / "several" / "seed_2")
    said = marlflow(*sweep, "seed=1,2", OTHER)
    assert said.code == 2
    assert f"there is a run in {tmp_path / 'several' / 'seed_2'} already" in said.err
    assert content(tmp_path / "several" / "seed_2") == before
    assert OTHER in overrides(tmp_path / "several" / "seed_1")


@pytest.fixture
def one_second(monkeypatch: pytest.MonkeyPatch) -> time.struct_time:
    """All that happens happens in this second."""
    now = time.struct_time((2026, 1, 31, 12, 0, 0, 5, 31, 0))
    monkeypatch.setattr(time, "localtime", lambda *_: now)
    return now


@pytest.mark.usefixtures("one_second")
def test_runs_that_start_in_the_same_second_have_folders_of_their_own(marlflow: Marlflow, tmp_path: Path) -> None:
    for seed in (1, 2):
        assert marlflow("train", *WORDS, f"seed={seed}").code == 0
    assert marlflow("train", "-m", *WORDS, "seed=3,4").code == 0
    runs = tmp_path / "runs" / "cartpole_team"
    found = {str(path.parent.relative_to(runs)): path / "config.yaml" for path in runs.rglob(".hydra")}
    seeds = {name: path.read_text(encoding="utf-8").partition("seed: ")[2][0] for name, path in found.items()}
    first, second, third = "2026-01-31_12-00-00", "2026-01-31_12-00-00_2", "2026-01-31_12-00-00_3"
    assert seeds == {first: "1", second: "2", f"{third}/0": "3", f"{third}/1": "4"}


@pytest.mark.usefixtures("one_second")
def test_a_sweep_over_environments_keeps_a_folder_for_each(marlflow: Marlflow, tmp_path: Path) -> None:
    assert marlflow("train", "-m", *WORDS, "env=cartpole_team,simple_spread").code == 0
    found = sorted(str(path.parent.relative_to(tmp_path / "runs")) for path in tmp_path.rglob(".hydra"))
    assert found == ["cartpole_team/2026-01-31_12-00-00/0", "simple_spread/2026-01-31_12-00-00/1"]
