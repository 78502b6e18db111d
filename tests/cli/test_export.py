"""`marlflow export minari=ID`: recorded rows as a Minari dataset."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import marlflow as mf
from tests.cli.conftest import Marlflow
from tests.runtime.small_runs import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that recorded two policies."""
    run_dir = tmp_path_factory.mktemp("runs") / "expert"
    mf.train(small_run(env_steps=400, record=mf.Record()), run_dir)
    return run_dir


@pytest.mark.parametrize("folder", [".", "record"])
def test_recorded_rows_become_a_minari_dataset(
    marlflow: Marlflow, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    said = marlflow("export", str(run / folder), "policy=prey", "minari=cartpole/prey-v0")
    dataset = minari.load_dataset("cartpole/prey-v0")
    counts = f"{dataset.total_episodes:,} episodes and {dataset.total_steps:,} steps of prey"
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"wrote the Minari dataset cartpole/prey-v0: {counts}\n")
    again = marlflow("export", str(run / folder), "policy=prey", "minari=cartpole/prey-v0")
    again.assert_refused("there is a Minari dataset cartpole/prey-v0 already; remove it: minari delete")


def test_minari_goes_with_no_option_of_networks(marlflow: Marlflow, run: Path) -> None:
    said = marlflow("export", str(run), "minari=prey-v0", "format=pt2", "checkpoint=best")
    said.assert_refused("minari writes recorded rows, not a network: leave format, checkpoint out")


def test_without_minari_the_extra_is_named(marlflow: Marlflow, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    marlflow("export", str(run), "minari=prey-v0").assert_refused("pip install 'marlflow[minari]'")


def test_a_run_that_recorded_nothing_is_refused(marlflow: Marlflow, tmp_path: Path) -> None:
    pytest.importorskip("minari")
    marlflow("export", str(tmp_path), "minari=prey-v0").assert_refused("has no manifest.json")
