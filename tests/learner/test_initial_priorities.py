"""Priorities of new rows: each row's own n-step error, whichever rows it comes with and wherever it is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Weights
from marlflow.learner.compute import ON_CPU
from marlflow.learner.published_learner import PublishedLearner
from marlflow.learner.value_chunks import transitions_of
from tests.learner.experience import ACTIONS, FEATURES, ragged, transitions

SPACES = Spaces(gym.Box(-9.0, 9.0, (FEATURES,)), gym.Discrete(ACTIONS))
DISCOUNT, N_STEP = 0.9, 3


@dataclass
class Published:
    """The weights that a learner published last."""

    published: Mapping[str, Weights]
    scheduled: Mapping[str, float] = field(default_factory=dict)


def learner_of(config: mf.DQN) -> mf.TorchLearner:
    return config.learner("hunter", {"hunter": mf.Member(SPACES, mf.MLP((8,)))}, 0, ON_CPU)


def windowed(lengths: list[int], seed: int, masked: bool = False) -> mf.Batch:
    batch = ragged(lengths, seed)
    if masked:
        rng = np.random.default_rng(seed)
        mask, bootstrap = rng.random((batch.rows, ACTIONS)) < 0.5, rng.random((len(lengths), ACTIONS)) < 0.5
        mask[np.arange(batch.rows), batch.columns["action"]] = bootstrap[:, 0] = True
        batch = mf.Batch({**batch.columns, "action_mask": mask}, {**batch.segments, "bootstrap_mask": bootstrap})
    return mf.NStep(N_STEP, DISCOUNT)(batch)


def q(learner: mf.TorchLearner, obs: Array) -> Array:
    with torch.no_grad():
        found: Array = learner.module(torch.from_numpy(obs[None])).numpy()[0]
    return found


def naive(learner: mf.TorchLearner, batch: mf.Batch) -> list[float]:
    """Segment by segment, row by row, from rewards and ends alone."""
    columns, segments = batch.columns, batch.segments
    found, start = [], 0
    for number, length in enumerate(segments["length"]):
        for row in range(start, start + length):
            steps = min(N_STEP, start + length - row)
            target = sum(DISCOUNT**k * columns["reward"][row + k] for k in range(steps))
            ended = row + steps == start + length
            after = segments["bootstrap_obs"][number] if ended else columns["obs"][row + steps]
            legal = np.ones(ACTIONS, bool)
            if "action_mask" in columns:
                legal = segments["bootstrap_mask"][number] if ended else columns["action_mask"][row + steps]
            if not (ended and segments["terminated"][number]):
                target += DISCOUNT**steps * q(learner, after)[legal].max()
            found.append(abs(target - q(learner, columns["obs"][row])[columns["action"][row]]))
        start += length
    return found


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 100), st.booleans(), st.booleans())
def test_priorities_are_those_of_a_loop(lengths: list[int], seed: int, masked: bool, dueling: bool) -> None:
    learner, batch = learner_of(mf.DQN(dueling=dueling)), windowed(lengths, seed, masked)
    found = mf.InitialPriorities()(batch, learner).columns["priority"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, naive(learner, batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [mf.DQN(), mf.DQN(dueling=True), mf.DQN(atoms=11)], ids=["plain", "dueling", "c51"])
def test_a_rows_priority_is_the_same_alone_with_others_and_elsewhere(config: mf.DQN) -> None:
    learner, batch = learner_of(config), windowed([4, 7, 30, 2], 3)
    whole = mf.InitialPriorities()(batch, learner).columns["priority"]
    parts = [batch.only(np.arange(4) == number) for number in range(4)]
    alone = np.concatenate([mf.InitialPriorities()(part, learner).columns["priority"] for part in parts])
    np.testing.assert_array_equal(whole, alone)
    learner.update(transitions(32))
    learner.publish_all()

    published = Published(learner.publish())
    elsewhere = PublishedLearner("hunter", config.capabilities.trains_on, lambda: learner_of(config), published)
    there = elsewhere.priorities(transitions_of(batch))
    np.testing.assert_array_equal(there, mf.InitialPriorities()(batch, learner).columns["priority"])
    assert np.abs(there - whole).max() > 1e-4


def test_it_learns_nothing_and_wants_a_loss_that_can() -> None:
    learner = learner_of(mf.DQN())
    before = learner.parameters.flat.vector.clone()
    mf.InitialPriorities()(windowed([5], 0), learner)
    assert torch.equal(learner.parameters.flat.vector, before)
    assert mf.InitialPriorities()(windowed([], 0), learner).columns["priority"].shape == (0,)
    with pytest.raises(TypeError, match="PPOLoss gives no priorities"):
        mf.InitialPriorities()(
            windowed([5], 0), mf.PPO().learner("hunter", {"hunter": mf.Member(SPACES, mf.MLP((8,)))}, 0, ON_CPU)
        )


def test_dropout_is_off_where_they_are_computed() -> None:
    class Dropping:
        def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[torch.nn.Module, int]:
            return torch.nn.Sequential(torch.nn.Linear(obs_shape[0], 16), torch.nn.Dropout(0.5)), 16

    learner = mf.DQN().learner("hunter", {"hunter": mf.Member(SPACES, Dropping())}, 0, ON_CPU)
    batch = windowed([5, 3], 0)
    found = [mf.InitialPriorities()(batch, learner).columns["priority"] for _ in range(2)]
    assert learner.module.training
    learner.module.eval()
    np.testing.assert_allclose(found, [naive(learner, batch)] * 2, rtol=1e-4, atol=1e-5)
