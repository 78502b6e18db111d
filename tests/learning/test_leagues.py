"""PSRO and NFSP come much closer to an equilibrium of Kuhn poker than any greedy policy can."""

from pathlib import Path

import pytest

from benchmarks.equilibria import best_greedy_pair, checked, members_of, solutions
from marlflow.driver.train import train


@pytest.mark.learning
def test_psro_nearly_solves_kuhn_poker(tmp_path: Path) -> None:
    made = checked(
        ["experiment=kuhn_psro", "runtime=inline", "stop.env_steps=360000", "evaluation.episodes=0", "log.console=none"]
    )
    train(made.experiment, tmp_path)
    members = members_of(made, tmp_path)
    curve = [one.nash_conv for one in solutions(members)]
    assert curve[0] == pytest.approx(11 / 12), "random alone"
    assert min(curve) <= 0.15
    # Of all pairs of pure strategies, none is less exploitable than this.
    assert best_greedy_pair(members) >= 1 / 3 - 1e-9


@pytest.mark.learning
def test_the_average_policy_of_nfsp_approaches_an_equilibrium_and_its_best_response_does_not(tmp_path: Path) -> None:
    made = checked(
        ["experiment=kuhn_nfsp", "runtime=inline", "stop.env_steps=400000", "evaluation.episodes=0", "log.console=none"]
    )
    train(made.experiment, tmp_path)
    members = members_of(made, tmp_path, {"response": "greedy"})
    average, response = (members.states.nash_conv(members.policies[name]) for name in ("average", "response"))
    assert average <= 0.12
    # Of all pairs of pure strategies, none is less exploitable than this.
    assert response >= 1 / 3 - 1e-9
