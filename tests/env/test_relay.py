"""Values of the relay by dynamic programming, held against play and against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from benchmarks.team_answers import Kinds, relay_return, relay_values
from marlflow.env.games.relay import RelayRace, parallel_env

BEST = relay_values(3, 0.9)


def kinds(env: RelayRace) -> Kinds:
    """What env.state() says of each agent: 0 it waits, 1 it is present, 2 it is gone."""
    return tuple(int(kind) for kind in env.state().reshape(-1, 3).argmax(axis=1))


def walks(state: Kinds) -> Sequence[int]:
    return [0] * state.count(1)


def runs(state: Kinds) -> Sequence[int]:
    return [1] * state.count(1)


@pytest.mark.parametrize("act", [BEST.best, walks, runs])
def test_returns_of_episodes_are_those_of_the_markov_chain(act: Callable[[Kinds], Sequence[int]]) -> None:
    env = parallel_env()
    env.reset(seed=7)
    returns = []
    for _ in range(2_000):
        env.reset()
        total = 0.0
        while env.agents:
            state, before = kinds(env), list(env.agents)
            assert [env.possible_agents[number] for number in range(3) if state[number] == 1] == before
            actions = dict(zip(before, act(state), strict=True))
            _, rewards, terminations, truncations, _ = env.step(actions)
            expected = 1.0 + 2.0 * sum(actions.values())
            assert rewards == {agent: expected if agent in before else 0.0 for agent in rewards}
            assert {agent for agent in rewards if not terminations[agent]} == set(env.agents)
            assert not any(truncations.values())
            assert all(new >= old for old, new in zip(state, kinds(env), strict=True)), "the dead do not return"
            total += expected
        returns.append(total)
    error = np.std(returns) / np.sqrt(len(returns))
    assert abs(np.mean(returns) - relay_return(3, act)) < 4.0 * error


def test_frequencies_of_deaths_and_arrivals() -> None:
    env = parallel_env(2)
    env.reset(seed=3)
    counts = np.zeros((2, 2))
    for action, _ in product(range(2), range(4_000)):
        env.reset()
        env.step({"member_0": action})
        counts[action] += kinds(env)[0] == 2, kinds(env)[1] == 1
    np.testing.assert_allclose(counts / 4_000, [[0.1, 0.3], [0.4, 0.3]], atol=0.03)


def test_one_member_alone_has_the_value_of_a_geometric_series() -> None:
    walking, running = 1.0 / (1.0 - 0.9 * 0.9), 3.0 / (1.0 - 0.9 * 0.6)
    assert relay_values(1, 0.9).values[(1,)] == pytest.approx(max(walking, running))
    assert relay_return(1, walks) == pytest.approx(1.0 / 0.1)
    assert relay_return(1, runs) == pytest.approx(3.0 / 0.4)


def test_what_the_bars_rely_on() -> None:
    assert BEST.values[1, 0, 0] == pytest.approx(12.51, abs=0.005)
    assert relay_values(3, 0.9, ends="any").values[1, 0, 0] == pytest.approx(6.98, abs=0.005)
    greedy = {state: set(BEST.best(state)) for state in BEST.values}
    # All members do the same, which depends on the state.
    assert all(len(actions) == 1 for actions in greedy.values())
    assert {actions.pop() for actions in greedy.values()} == {0, 1}


def test_each_members_better_action_does_not_depend_on_what_the_others_do() -> None:
    """So a monotonic mixer can represent which joint action is best."""
    for (state, actions), value in BEST.joint.items():
        for member, best in enumerate(BEST.best(state)):
            other = (*actions[:member], best, *actions[member + 1 :])
            assert BEST.joint[state, other] >= value
