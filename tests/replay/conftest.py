"""Batches of given segments, and the tolerance with which float32 meets float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from marlflow.batches.batch import Batch

MakeBatch = Callable[..., Batch]


def _batch(rewards: Sequence[Sequence[float]], ends: str, first_obs: int = 0, masked: bool = False) -> Batch:
    """One segment per list of rewards; `ends` has a letter for each: t(erminated), u (truncated) or o(ther).

    Observations count up from `first_obs`, the bootstraps included, so that what follows a row is its own plus 1.
    A mask forbids the action that is the observation modulo 3.
    """
    length = np.array([len(segment) for segment in rewards])
    step = np.ones(length.sum(), np.int64)
    step[np.cumsum(length)[:-1]] = 2
    step[0] = first_obs
    row = np.cumsum(step)
    bootstrap = row[np.cumsum(length) - 1] + 1
    columns = {
        "obs": np.stack([row, -row], axis=1).astype(np.int32),
        "action": row % 3,
        "reward": np.array([reward for segment in rewards for reward in segment], np.float64),
    }
    segments = {
        "length": length,
        "terminated": np.array([end == "t" for end in ends]),
        "truncated": np.array([end == "u" for end in ends]),
        "bootstrap_obs": np.stack([bootstrap, -bootstrap], axis=1).astype(np.int32),
    }
    if masked:
        columns["action_mask"] = row[:, None] % 3 != np.arange(3)
        segments["bootstrap_mask"] = bootstrap[:, None] % 3 != np.arange(3)
    return Batch(columns, segments)


@pytest.fixture(scope="session")
def make_batch() -> MakeBatch:
    """Makes a batch from lists of rewards, one letter per segment for its end, and its first observation."""
    return _batch
