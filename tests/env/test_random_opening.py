"""Random openings: decided by the seed, legal, all lengths equally likely, and nothing happens in them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.classic import connect_four_v3
from pettingzoo.test import api_test

from marlflow.env.wrappers.shipped import mask_in_info
from marlflow.env.wrappers.wrapping import RandomOpening

MOVES = 5


def discs(env: Any) -> int:
    return int(env.observe(env.agent_selection)["observation"].sum())


def test_the_seed_decides_the_opening_and_all_lengths_are_equally_likely() -> None:
    one, other = (RandomOpening(connect_four_v3.env(), MOVES) for _ in range(2))
    lengths: Counter[int] = Counter()
    boards = set()
    for seed in range(600):
        for env in (one, other):
            env.reset(seed=seed)
        board = one.observe("player_0")["observation"]
        np.testing.assert_array_equal(board, other.observe("player_0")["observation"])
        lengths[discs(one)] += 1
        boards.add(board.tobytes())
        assert one.agent_selection == f"player_{discs(one) % 2}"
    assert set(lengths) == set(range(MOVES + 1))
    assert all(70 <= count <= 130 for count in lengths.values()), lengths
    assert len(boards) > 200


def test_episodes_without_a_seed_differ() -> None:
    env = RandomOpening(connect_four_v3.env(), MOVES)
    env.reset(seed=1)
    boards = set()
    for _ in range(20):
        env.reset()
        boards.add(env.observe("player_0")["observation"].tobytes())
    assert len(boards) > 5


# An empty board.
@pytest.mark.filterwarnings("ignore:Observation numpy array is all zeros")
@pytest.mark.parametrize("around", [lambda env: env, mask_in_info])
def test_masks_are_kept_and_it_is_a_pettingzoo_environment(around: Any) -> None:
    # More moves than there are cells: openings with an illegal move would raise, and those that end are not played.
    env = around(RandomOpening(connect_four_v3.env(), 42))
    lengths = set()
    for seed in range(100):
        env.reset(seed=seed)
        assert not any(env.terminations.values())
        assert not any(env.rewards.values())
        lengths.add(discs(env.unwrapped))
    assert 0 in lengths
    assert max(lengths) > 10
    api_test(env, num_cycles=50)


class PaysAndEnds(AECEnv[str, int, int]):
    """Two agents in turn, with actions from 3 on; the second move pays, or ends the game."""

    metadata = {"name": "pays_and_ends", "render_modes": []}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self, ends: bool) -> None:
        super().__init__()
        self._ends = ends

    def observation_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(10)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2, start=3)

    def observe(self, agent: str) -> int:
        return self.taken

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents, self.taken, self.seed = list(self.possible_agents), 0, seed
        self.agent_selection = "a"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action: int) -> None:
        assert action in (3, 4)
        self.taken += 1
        self.agent_selection = "ab"[self.taken % 2]
        if self.taken == 2:
            self.terminations = dict.fromkeys(self.agents, self._ends)
            self.rewards = dict.fromkeys(self.agents, 0.0 if self._ends else 1.0)
            self._accumulate_rewards()


@pytest.mark.parametrize("ends", [True, False])
def test_an_opening_in_which_something_happens_is_not_played(ends: bool) -> None:
    env = RandomOpening(PaysAndEnds(ends), 2)
    lengths: Counter[int] = Counter()
    for seed in range(60):
        env.reset(seed=seed)
        lengths[env.unwrapped.taken] += 1  # type: ignore[attr-defined]
        assert env.unwrapped.seed == seed  # type: ignore[attr-defined]
        assert env._cumulative_rewards == {"a": 0.0, "b": 0.0}
    # Those of two moves begin as without an opening.
    assert set(lengths) == {0, 1}
    assert lengths[0] > lengths[1]
