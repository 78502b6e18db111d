"""Drivers that are killed at random moments: each resume goes on from the newest checkpoint, and no report is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.killed_drivers import killed_run, problems, reports, settings
from marlflow.observe.trace_events import TRACE, read_trace
from tests.cli.conftest import Marlflow
from tests.driver.kept_runs import without_times
from tests.observe.test_timeline import check_schema

pytestmark = pytest.mark.slow

STOP = 4_000


def test_a_run_that_is_killed_again_and_again_does_what_it_would_have_done(marlflow: Marlflow, tmp_path: Path) -> None:
    command, *words = settings("inline", STOP)
    words = [command, "log.trace=true", *words]
    killed = killed_run(words, tmp_path, kills=3, seed=4)
    assert problems(tmp_path / "run", killed, STOP) == []
    assert marlflow(*words[:-1], "hydra.run.dir=whole").code == 0
    assert without_times(reports(tmp_path / "run")) == without_times(reports(tmp_path / "whole"))
    events = read_trace(tmp_path / "run" / TRACE)
    check_schema(events)
    assert sum(event["name"].startswith("run from") for event in events) > len(killed) - 1


def test_a_run_over_ray_that_is_killed_leaves_nothing_behind_and_goes_on(tmp_path: Path) -> None:
    shared_memory = {path.name for path in Path("/dev/shm").iterdir()}
    killed = killed_run(settings("ray", STOP), tmp_path, kills=1, seed=4)
    assert problems(tmp_path / "run", killed, STOP) == []
    assert killed[0].processes > 5
    assert {path.name for path in Path("/dev/shm").iterdir()} <= shared_memory
