"""The roads pay and cost what they are said to."""

from __future__ import annotations

import pytest

from marlflow.env.games import toll


def test_the_fast_road_pays_one_more_and_costs_one() -> None:
    env = toll.parallel_env()
    env.reset(seed=0)
    _, rewards, terminations, truncations, infos = env.step({"car_0": toll.SLOW, "car_1": toll.FAST})
    assert rewards == {"car_0": 1.0, "car_1": 2.0}
    assert infos == {"car_0": {"cost": 0.0}, "car_1": {"cost": 1.0}}
    assert terminations == {"car_0": True, "car_1": True}
    assert not any(truncations.values())
    assert env.agents == []


def test_it_needs_a_car() -> None:
    with pytest.raises(ValueError, match="num_agents must be at least 1, not 0"):
        toll.parallel_env(0)
