"""The return with memory and without, by enumeration of what agents can do."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from marlflow.env.games.recall import parallel_env


def played(seed: int, named: tuple[int, ...], delay: int = 5) -> tuple[tuple[int, ...], list[float]]:
    """Name the given bits at the end, and their opposites before; return the true bits and the rewards."""
    env = parallel_env(len(named), delay)
    observations, _ = env.reset(seed=seed)
    bits = tuple(int(observations[agent][0] > 0) for agent in env.possible_agents)
    rewards = []
    while env.agents:
        last = len(rewards) == delay
        actions = {agent: bit if last else 1 - bit for agent, bit in zip(env.agents, named, strict=True)}
        np.testing.assert_array_equal(env.state()[:-1], [2 * bit - 1 for bit in bits])
        observations, reward, terminations, truncations, _ = env.step(actions)
        assert len(set(reward.values())) == 1
        assert set(terminations.values()) == {last}
        assert not any(truncations.values())
        for observation in observations.values():
            assert observation[0] == 0.0, "bits are shown once"
            assert observation[1] == pytest.approx(min(1.0, (len(rewards) + 1) / delay))
        rewards.append(next(iter(reward.values())))
    return bits, rewards


def test_all_are_paid_once_if_all_are_right_at_the_end() -> None:
    seen = set()
    for seed, named in product(range(12), product(range(2), repeat=2)):
        bits, rewards = played(seed, named)
        assert rewards == [0.0] * 5 + [float(bits == named)]
        seen.add(bits)
    assert seen == set(product(range(2), repeat=2))


@pytest.mark.parametrize("num_agents", [1, 2, 3])
def test_without_memory_no_answer_is_right_more_often_than_by_chance(num_agents: int) -> None:
    drawn = [played(seed, (0,) * num_agents, delay=1)[0] for seed in range(2_000)]
    for named in product(range(2), repeat=num_agents):
        share = np.mean([bits == named for bits in drawn])
        assert share == pytest.approx(0.5**num_agents, abs=0.05)
