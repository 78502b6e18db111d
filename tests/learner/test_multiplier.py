"""The multiplier of a limit on costs, against a plain loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.learner.part_state import Multiplier

costs = st.floats(-10.0, 10.0).map(lambda cost: round(8 * cost) / 8)


@given(st.lists(st.lists(costs, max_size=4), max_size=12), costs.map(abs), st.sampled_from([0.0, 0.05, 1.0]))
def test_it_moves_by_the_episodes_since_its_last_step(periods, limit, rate):
    multiplier, expected = Multiplier(0.5), 0.5
    total, count = 0.0, 0
    for episodes in periods:
        total, count = total + sum(episodes), count + len(episodes)
        if episodes:
            expected = max(0.0, expected + rate * (sum(episodes) / len(episodes) - limit))
        found = multiplier.step({"cost_total": total, "cost_episodes": count}, limit, rate)
        assert found == pytest.approx(expected, abs=1e-12)
        assert found >= 0.0
        assert ("cost_mean" in multiplier.terms) == bool(episodes)
        if episodes:
            mean = sum(episodes) / len(episodes)
            assert multiplier.terms == {
                "multiplier": found,
                "cost_mean": mean,
                "cost_violation": max(0.0, mean - limit),
            }
        # A restored learner continues from here.
        restored = Multiplier(9.0)
        restored.load_state(multiplier.state())
        multiplier = restored


def test_without_totals_it_stays() -> None:
    multiplier = Multiplier(0.25)
    assert multiplier.step({}, 0.0, 1.0) == 0.25
    assert multiplier.terms == {"multiplier": 0.25}


def test_begun_again_it_counts_later_episodes_only() -> None:
    multiplier = Multiplier(0.0)
    multiplier.step({"cost_total": 30.0, "cost_episodes": 10.0}, 1.0, 0.5)
    assert multiplier.value[0] == 1.0
    multiplier.load_state(multiplier.restarted(Multiplier(0.125).state()))
    assert multiplier.step({"cost_total": 30.0, "cost_episodes": 10.0}, 1.0, 0.5) == 0.125
    assert multiplier.step({"cost_total": 32.0, "cost_episodes": 11.0}, 1.0, 0.5) == 0.625
