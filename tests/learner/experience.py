"""Made-up experience for the tests of learners."""

import numpy as np

from marlflow.batches.batch import Batch, EstimatedBatch, Transitions

FEATURES, ACTIONS = 4, 3


def ragged(lengths: list[int], seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    rows, segments = sum(lengths), len(lengths)
    terminated = rng.random(segments) < 0.4
    return Batch(
        {
            "obs": rng.standard_normal((rows, FEATURES)).astype(np.float32),
            "action": rng.integers(0, ACTIONS, rows),
            "reward": rng.standard_normal(rows),
            "behavior_logp": (-rng.random(rows) - 0.5).astype(np.float32),
            "version": np.zeros(rows, np.int64),
        },
        {
            "length": np.array(lengths, np.int64),
            "terminated": terminated,
            "truncated": ~terminated & (rng.random(segments) < 0.5),
            "bootstrap_obs": rng.standard_normal((segments, FEATURES)).astype(np.float32),
            "carried": np.zeros(segments, bool),
        },
    )


def estimated(rows: int, seed: int = 0, masked: bool = False) -> EstimatedBatch:
    rng = np.random.default_rng(seed)
    batch = ragged([rows], seed)
    names = ("value", "advantage", "value_target")
    columns = {**batch.columns, **{name: rng.standard_normal(rows).astype(np.float32) for name in names}}
    if masked:
        mask = rng.random((rows, ACTIONS)) < 0.5
        mask[np.arange(rows), columns["action"]] = True
        columns["action_mask"] = mask
    return EstimatedBatch(columns, batch.segments)


def transitions(rows: int, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.standard_normal((2, rows, FEATURES)).astype(np.float32)
    reward, discount, weight = rng.random((3, rows)).astype(np.float32)
    return Transitions(obs, rng.integers(0, ACTIONS, rows), reward, discount, next_obs, weight, np.arange(rows) + 100)
