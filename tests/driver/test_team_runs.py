"""Teams with central critics, of all three algorithms in one run: a resumed run learns what a longer one does."""

from __future__ import annotations

from pathlib import Path

from tests.driver.resumed_runs import resumes_exactly
from tests.runtime.team_runs import teams


def test_a_resumed_run_learns_as_one_that_was_not_ended(tmp_path: Path) -> None:
    learners = resumes_exactly(teams(480), tmp_path, 280).metrics["learners"]
    assert learners.keys() == {"mappo", "recurrent", "happo"}
    for learner in learners.values():
        assert learner["version"] >= 5
        assert learner["rows_bootstrapped_at_death"] > 0
