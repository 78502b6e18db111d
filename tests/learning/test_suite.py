"""Each algorithm learns what it must, on one seed: the short form of benchmarks/suite.py and benchmarks/imitation.py.

Every experiment is the one that ships, with its own budget of env steps, and inline: so a seed decides everything.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.imitation import SHARE, expert, imitated
from benchmarks.suite import CASES, Case, run

SEED = 0


@pytest.mark.learning
@pytest.mark.parametrize(
    "case", [case for case in CASES if (case.bar, case.at_most) != (None, None)], ids=lambda case: case.name
)
def test_each_algorithm_reaches_its_bar_and_one_without_memory_stays_under_its_own(case: Case) -> None:
    best = run(case, SEED).best
    assert case.bar is None or best >= case.bar
    assert case.at_most is None or best < case.at_most


@pytest.mark.learning
def test_clones_come_to_what_a_recorded_expert_did(tmp_path: Path) -> None:
    target, records = expert(tmp_path, SEED)
    for algorithm in ("bc", "marwil"):
        reached, _ = imitated(tmp_path, algorithm, records, SEED)
        assert reached >= SHARE * target, algorithm


def test_every_shipped_experiment_of_one_team_is_tried() -> None:
    """But for DDPG's, which has no bar, those of imitation and of MAML, which have tests of their own."""
    folder = Path(__file__).resolve().parents[2] / "conf" / "experiment"
    shipped = {path.stem for path in folder.glob("*_team_*.yaml")}
    tried = {case.experiment for case in CASES}
    assert shipped - tried == {"cartpole_team_bc", "cartpole_team_marwil", "cartpole_team_ppo_dqn"}
