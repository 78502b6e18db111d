"""Each algorithm learns what it must and keeps it, on one seed: benchmarks/suite.py and imitation.py in short.

Every experiment is the one that ships, with its own budget of env steps, and inline: so a seed decides everything.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.imitation import SHARE, expert, imitated
from benchmarks.suite import CASES, Case, run

SEED = 0


@pytest.mark.learning
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title or case.experiment)
def test_each_algorithm_learns_and_does_not_forget_and_one_without_memory_cannot(case: Case) -> None:
    problems = {policy: outcome.problem(case) for policy, outcome in run(case, SEED).items()}
    assert set(problems.values()) == {None}, problems


@pytest.mark.learning
def test_clones_come_to_what_a_recorded_expert_did(tmp_path: Path) -> None:
    target, records = expert(tmp_path, SEED)
    for algorithm in ("bc", "marwil"):
        reached, _ = imitated(tmp_path, algorithm, records, SEED)
        assert reached >= SHARE * target, algorithm


def test_every_shipped_experiment_of_one_team_is_tried() -> None:
    """Imitation and populations have tests of their own."""
    folder = Path(__file__).resolve().parents[2] / "conf" / "experiment"
    shipped = {path.stem for path in folder.glob("*_team_*.yaml")}
    tried = {case.experiment for case in CASES}
    assert shipped - tried == {"cartpole_team_bc", "cartpole_team_marwil", "cartpole_team_pbt"}
