"""The optimum of the game, by enumeration of what its agents can do."""

from __future__ import annotations

from itertools import product

from marlflow.env.games.sacrifice import parallel_env


def test_a_sacrifice_is_worth_ten_and_nothing_else_more_than_two() -> None:
    returns = {}
    for choices in product(range(2), repeat=3):
        env = parallel_env()
        env.reset(seed=0)
        total, (opener, first, second) = 0.0, choices
        _, rewards, *_ = env.step({"opener": opener, "runner": first})
        total += sum(rewards.values())
        if env.agents:
            assert env.agents == ["runner"]
            _, rewards, *_ = env.step({"runner": second})
            total += sum(rewards.values())
        assert not env.agents
        returns[choices] = total
    assert returns == {choices: 10.0 if choices[0] == 1 else 2.0 for choices in returns}
