"""Leagues come close to an equilibrium of small games, by exact NashConv, and controls do not."""

from __future__ import annotations

import pytest

from benchmarks.nash_conv import ENTRIES, measured, passes


@pytest.mark.learning
def test_the_average_policy_of_nfsp_approaches_an_equilibrium_and_its_best_response_does_not() -> None:
    entry = ENTRIES["kuhn_nfsp"]
    found, _ = measured(entry, seed=0, env_steps=400_000, points=4)
    assert passes(entry, found), found
    assert found["average"][-1][1] < min(value for _, value in found["response"])
