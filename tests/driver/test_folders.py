"""Each process gets a new folder, however many ask at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marlflow.config.folders import new_folder
from marlflow.driver.train import train
from tests.runtime.small_runs import small_run


def test_everybody_gets_another_folder(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as at_once:
        made = list(at_once.map(new_folder, [tmp_path / "runs" / "name"] * 16))
    assert {path.name for path in made} == {"name", *(f"name_{number}" for number in range(2, 17))}
    assert all(path.is_dir() for path in made)


def test_a_folder_that_is_there_with_a_number_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "run_2").mkdir()
    assert [new_folder(tmp_path / "run").name for _ in range(3)] == ["run", "run_3", "run_4"]


def test_runs_from_python_that_start_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda *_: "2026-01-31_12-00-00")
    found = [train(small_run(env_steps=160)).run_dir.name for _ in range(2)]
    assert found == ["2026-01-31_12-00-00", "2026-01-31_12-00-00_2"]


def test_files_of_a_run_are_written_once_the_folder_is_its_own(tmp_path: Path) -> None:
    train(small_run(env_steps=160), tmp_path / "run", files={"own/settings.yaml": "seed: 0\n"})
    assert (tmp_path / "run" / "own" / "settings.yaml").read_text(encoding="utf-8") == "seed: 0\n"
