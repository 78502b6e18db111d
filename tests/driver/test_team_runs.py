"""Teams with central critics, of all three algorithms in one run: a resumed run learns what a longer one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.runtime.saved_runs import newest
from tests.runtime.small_runs import without_times
from tests.runtime.team_runs import teams


def states(folder: Path) -> dict[str, Any]:
    checkpoint = newest(folder)
    return {name: from_bytes(checkpoint.read(name)) for name in checkpoint.names if name.startswith("learner.")}


def test_a_resumed_run_learns_as_one_that_was_not_ended(tmp_path: Path) -> None:
    whole = mf.train(teams(480), tmp_path / "whole")
    mf.train(teams(280), tmp_path / "parts")
    parts = mf.resume(teams(480), tmp_path / "parts")
    assert states(tmp_path / "whole").keys() == {"learner.mappo", "learner.recurrent", "learner.happo"}
    np.testing.assert_equal(states(tmp_path / "parts"), states(tmp_path / "whole"))
    assert without_times(parts.metrics) == without_times(whole.metrics)
    for learner in whole.metrics["learners"].values():
        assert learner["version"] >= 5
        assert learner["rows_bootstrapped_at_death"] > 0
