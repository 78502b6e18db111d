"""Teams whose rewards are divided by their running root mean square: no unit of rewards changes what is learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.learner.compute import ON_CPU
from marlflow.policy.normalized import RewardMoments, reward_unit
from tests.algorithms import test_recurrent_mixing_loss as recurrent
from tests.algorithms.parts import make_learner
from tests.algorithms.teams import TEAM, gradient_of, team_rows, tensors
from tests.algorithms.test_dqn import transitions as dqn_rows

UNIT = {"rewards": mf.RewardUnit()}


@pytest.mark.parametrize("algorithm", [mf.VDN(parts=UNIT), mf.QMIX(parts=UNIT)])
def test_a_team_learns_the_same_in_every_unit(algorithm: mf.VDN) -> None:
    """Rewards a thousandth as large: the same gradients and the same errors, and values a thousandth as large."""
    found = []
    for unit in (1.0, 1e-3):
        learner, seen = algorithm.learner("team", TEAM, 0, ON_CPU), team_rows(64)
        before = reward_unit(learner.module)
        assert float(before) == 1.0
        learner.parameters.observers(None)[0].observe({"reward": unit * torch.from_numpy(seen["reward"])})
        rows = team_rows(32, seed=1)
        terms, gradient = gradient_of(learner, tensors({**rows, "reward": unit * rows["reward"]}))
        found.append((gradient, terms.priorities, terms.terms["q_tot_mean"] / unit))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-2, atol=1e-5)


def test_errors_are_those_of_divided_rewards() -> None:
    plain, normalized = (one.learner("team", TEAM, 0, ON_CPU) for one in (mf.VDN(), mf.VDN(parts=UNIT)))
    rows = team_rows(64, seed=1)
    normalized.update(mf.JointTransitions({**rows, "reward": 7.0 * rows["reward"]}))
    expected = np.sqrt(np.mean((7.0 * rows["reward"]) ** 2))
    assert float(reward_unit(normalized.module)) == pytest.approx(expected, rel=1e-5)
    plain.update(mf.JointTransitions({**rows, "reward": 7.0 * rows["reward"]}))  # before it, the unit was 1 for both
    terms, gradient = gradient_of(normalized, tensors(rows))
    other, other_gradient = gradient_of(plain, tensors({**rows, "reward": rows["reward"] / expected}))
    torch.testing.assert_close(terms.priorities, other.priorities, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient[: len(other_gradient)], other_gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("double", [True, False])
def test_dqn_learns_the_same_in_every_unit(double: bool) -> None:
    found = []
    for unit in (1.0, 1e-3):
        learner, rows = make_learner(mf.DQN(double=double, parts=UNIT)), dqn_rows(masked=True)
        learner.parameters.observers(None)[0].observe({"reward": unit * torch.from_numpy(rows.reward)})
        in_unit = replace(rows, reward=(unit * rows.reward).astype(np.float32))
        columns = {name: torch.from_numpy(column) for name, column in in_unit.columns_for_losses().items()}
        terms, gradient = gradient_of(learner, columns)
        found.append((gradient, terms.priorities, terms.terms["q_mean"] / unit))
    assert np.abs(found[0][0]).max() > 0.0
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-5)


def test_only_trained_steps_of_sequences_count() -> None:
    columns = recurrent.sequences()
    trained = columns["trained"]
    expected = np.sqrt(np.mean(columns["reward"][trained] ** 2))
    scale = RewardMoments()
    scale.observe({name: torch.from_numpy(columns[name]) for name in ("reward", "trained", "valid")})
    assert float(scale.unit) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("reward", "unit"), [(0.0, 1.0), (-1.0, 1.0), (0.01, 0.01)])
def test_the_unit_of_rewards_that_do_not_vary(reward: float, unit: float) -> None:
    """Constant rewards become 1 or -1; where all are 0 nothing is divided by nearly nothing."""
    scale = RewardMoments()
    assert float(scale.unit) == 1.0
    scale.observe({"reward": torch.full((100,), reward)})
    assert float(scale.unit) == pytest.approx(unit, rel=1e-4)
