"""Check that a run resumed from a checkpoint in its middle has the same results as without it, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import Any

import marlflow as mf
from marlflow.runs.saved_runs import folder, newest
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.watching import reports


@dataclass(frozen=True)
class Resumed:
    """A run, and the same one resumed from a checkpoint of its middle."""

    whole: Path
    parts: Path
    half: dict[str, Any]
    """The trees of the checkpoint that was resumed."""
    trees: dict[str, Any]
    """Those of the end, of both."""
    metrics: Any
    """Those that the resume ended with."""

    def assert_mid_way(self) -> None:
        """Something was half gathered, and episodes were running."""
        assert self.half["driver"]["flow"]["held"], "a batch was to be half gathered"
        assert any(env["running"] for env in self.half["workers"]["envs"]), "episodes were to be running"


def resumes_exactly(
    experiment: mf.Experiment, run_dir: Path, at: int, between: Callable[[], None] = lambda: None
) -> Resumed:
    """Train once, resume the run's own first checkpoint from `at` env steps on, and compare all that is kept.

    `between` is called before the resume.
    """
    (resumed,) = resumed_exactly(experiment, run_dir, [at], between)
    return resumed


def resumed_exactly(
    experiment: mf.Experiment, run_dir: Path, at: Sequence[int], between: Callable[[], None] = lambda: None
) -> Iterator[Resumed]:
    """As `resumes_exactly`, for several checkpoints of one run."""
    every = replace(experiment.checkpoint, every_env_steps=gcd(*at), keep=100)
    experiment, whole = replace(experiment, checkpoint=every), run_dir / "whole"
    mf.train(experiment, whole)
    between()
    trees, told = kept(whole), without_times(reports(whole))
    for env_steps in at:
        parts = run_dir / f"from {env_steps}"
        shutil.copytree(whole, parts)
        middle, *later = sorted(number for number in saved_at(parts) if number >= env_steps)
        assert later, "the run was to go on after the checkpoint"
        for number in later:
            shutil.rmtree(folder(parts) / str(number))
        assert newest(parts).env_steps == middle
        half = kept(parts)
        result = mf.resume(experiment, parts)
        assert result.metrics["faults"]["episodes_abandoned"] == result.metrics["faults"]["episodes_restarted"] == 0
        assert_equal(told, without_times(reports(parts)), "reports")
        assert_equal(trees, kept(parts))
        yield Resumed(whole, parts, half, trees, result.metrics)


def saved_at(run_dir: Path) -> list[int]:
    """Return the env steps of a run's checkpoints."""
    return sorted(int(path.name) for path in folder(run_dir).iterdir() if path.name.isdigit())
