"""Runs of every kind, each trained once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import marlflow as mf
from tests.trained.runs import RUNS

Trained = Callable[[str], Path]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """`trained("memory")` is the folder of that run."""
    folder = tmp_path_factory.mktemp("trained")

    def of(name: str) -> Path:
        run_dir = folder / name.replace(" ", "_")
        if not run_dir.exists():
            mf.train(RUNS[name], run_dir)
        return run_dir

    return of
