"""Chunks hold every row once, in order; and a row's value does not depend on which others come with it."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from marlflow.algorithms.algorithm import Member
from marlflow.algorithms.ppo import PPO
from marlflow.base.spaces import Spaces
from marlflow.learner import value_chunks as chunks
from marlflow.learner.compute import Compute
from marlflow.policy.torso import CNN, MLP, TorsoConfig


@given(rows=st.integers(0, 200), limit=st.sampled_from([16, 32, 64]))
def test_all_rows_come_once_in_whole_multiples(rows: int, limit: int) -> None:
    obs = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 1.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_ROWS", limit)
        found = list(chunks.value_chunks(obs))
    assert all(0 < len(chunk) <= limit and len(chunk) % chunks.WHOLE_ROWS == 0 for chunk in found)
    together = np.concatenate([obs[:0], *found])
    np.testing.assert_array_equal(together[:rows], obs)
    assert not together[rows:].any()
    assert len(together) - rows < chunks.WHOLE_ROWS


@pytest.mark.parametrize(
    ("observation", "model"),
    [
        (spaces.Box(-1.0, 1.0, (5,)), MLP((16,))),
        (spaces.Box(-1.0, 1.0, (37,)), MLP((64, 64))),
        (spaces.Box(0, 255, (40, 40, 3), np.uint8), CNN()),
    ],
)
def test_a_row_is_valued_the_same_bit_for_bit_among_others(observation: spaces.Box, model: TorsoConfig) -> None:
    learner = PPO().learner("hunter", {"hunter": Member(Spaces(observation, spaces.Discrete(3)), model)}, 0, Compute())
    generator = np.random.default_rng(0)
    obs = (generator.standard_normal((150, *observation.shape)) * 50).astype(observation.dtype)
    whole = learner.values(obs)
    for rows in (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 81, 100, 149):
        np.testing.assert_array_equal(learner.values(obs[:rows]), whole[:rows])
        np.testing.assert_array_equal(learner.values(obs[-rows:]), whole[-rows:])
