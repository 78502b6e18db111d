"""Forward passes in bfloat16; everything else in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.batches.sequences import cut_sequences
from marlflow.learner.compute import ON_CPU, Compute
from marlflow.policy.actor_critic import ActorCritic
from tests.learner.experience import ACTIONS, FEATURES, estimated, transitions

BFLOAT16 = Compute("cpu", "bfloat16")
VECTORS = Spaces(spaces.Box(-1.0, 1.0, (FEATURES,)), spaces.Discrete(ACTIONS))
PIXELS = Spaces(spaces.Box(0, 255, (6, 6, 2), np.uint8), spaces.Discrete(ACTIONS))
SMALL_CNN = mf.CNN(channels=(4,), kernel_sizes=(3,), strides=(1,), hidden_sizes=(8,))
# bfloat16 has 8 bits of precision: each rounding is by up to 1 in 256, and a few follow each other.
NEAR = {"rtol": 0.05, "atol": 0.02}


def learner(algorithm: Any, of: Spaces, model: mf.TorsoConfig, compute: Compute) -> mf.TorchLearner:
    return algorithm.learner("p", {"p": mf.Member(of, model)}, 0, compute)


def ppo_batch(of: Spaces, rows: int = 40) -> mf.EstimatedBatch:
    batch = estimated(rows, masked=True)
    return mf.EstimatedBatch({**batch.columns, "obs": observations(of, rows)}, batch.segments)


def dqn_batch(of: Spaces, rows: int = 40) -> mf.Transitions:
    draw = transitions(rows)
    draw.obs[:], draw.next_obs[:] = draw.next_obs, draw.obs
    ones = np.ones(rows, np.float32)
    obs = observations(of, rows)
    mask = np.random.default_rng(1).random((rows, ACTIONS)) < 0.7
    mask[:, 0] = True
    return mf.Transitions(
        obs, draw.action, draw.reward, draw.discount, obs[::-1].copy(), ones, draw.row_id, next_mask=mask
    )


def observations(of: Spaces, rows: int) -> Array:
    rng = np.random.default_rng(0)
    if of is PIXELS:
        return rng.integers(0, 256, (rows, 6, 6, 2)).astype(np.uint8)
    return rng.standard_normal((rows, FEATURES)).astype(np.float32)


def rounded(tensor: Tensor) -> bool:
    """Whether all of it is representable in bfloat16."""
    return torch.equal(tensor, tensor.bfloat16().float())


CASES = [
    pytest.param(mf.PPO(), VECTORS, mf.MLP((8,)), id="ppo"),
    pytest.param(mf.PPO(shared_torso=True), PIXELS, SMALL_CNN, id="ppo pixels"),
    pytest.param(mf.DQN(), VECTORS, mf.MLP((8,), "relu"), id="dqn"),
    pytest.param(mf.DQN(dueling=True), VECTORS, mf.MLP((8,)), id="dqn dueling"),
    pytest.param(mf.DQN(double=False), PIXELS, SMALL_CNN, id="dqn pixels"),
    # Their losses call parts of the network, not the whole.
    pytest.param(mf.DQN(atoms=11), VECTORS, mf.MLP((8,)), id="c51"),
    pytest.param(mf.BC(), VECTORS, mf.MLP((8,)), id="bc"),
]


@pytest.mark.parametrize(("algorithm", "of", "model"), CASES)
def test_an_update_is_near_that_in_float32(algorithm: mf.Algorithm, of: Spaces, model: mf.TorsoConfig) -> None:
    batch = dqn_batch(of) if isinstance(algorithm, mf.DQN) else ppo_batch(of)
    exact, cast = (learner(algorithm, of, model, compute) for compute in (ON_CPU, BFLOAT16))
    assert torch.equal(exact.parameters.flat.vector, cast.parameters.flat.vector)
    expected, found = exact.update(batch), cast.update(batch)
    assert found.loss != expected.loss
    assert found.loss == pytest.approx(expected.loss, rel=0.05, abs=0.02)
    scale = float(exact.parameters.flat.gradient.norm())
    assert 0 < float((cast.parameters.flat.gradient - exact.parameters.flat.gradient).norm()) < 0.05 * scale
    if expected.priorities is not None:
        np.testing.assert_allclose(found.priorities, expected.priorities, **NEAR)


@pytest.mark.parametrize(("algorithm", "of", "model"), CASES)
def test_what_is_learned_and_kept_stays_float32(algorithm: mf.Algorithm, of: Spaces, model: mf.TorsoConfig) -> None:
    cast = learner(algorithm, of, model, BFLOAT16)
    cast.update(dqn_batch(of) if isinstance(algorithm, mf.DQN) else ppo_batch(of), 2, 8)
    for name, tensor in {"vector": cast.parameters.flat.vector, "gradient": cast.parameters.flat.gradient}.items():
        assert tensor.dtype == torch.float32, name
    assert not rounded(cast.parameters.flat.vector)
    assert not rounded(cast.parameters.groups[0].optimizer.moment_1)
    assert cast.publish()["p"].flat.dtype == np.float32


def test_values_are_cast_and_come_back_as_float32() -> None:
    exact, cast = (learner(mf.PPO(), VECTORS, mf.MLP((8,)), compute) for compute in (ON_CPU, BFLOAT16))
    obs = observations(VECTORS, 50)
    found, expected = cast.values(obs), exact.values(obs)
    assert found.dtype == np.float32
    assert rounded(torch.from_numpy(found))
    assert not rounded(torch.from_numpy(expected))
    np.testing.assert_allclose(found, expected, **NEAR)


@pytest.mark.parametrize("model", [mf.GRU(6, (8,)), mf.LSTM(6, (8,))], ids=lambda model: type(model).__name__)
def test_a_memory_is_near_that_in_float32(model: Any) -> None:
    exact, cast = (
        mf.RecurrentPPO(learning_rate=1e-3).learner("p", {"p": mf.Member(VECTORS, model)}, 0, compute)
        for compute in (ON_CPU, BFLOAT16)
    )
    batch = estimated(40)
    memory = np.zeros((40, *model.memory_shape), np.float32)
    rows = cut_sequences(mf.EstimatedBatch({**batch.columns, "memory": memory}, batch.segments), 5)
    expected, found = exact.update(rows), cast.update(rows)
    assert found.loss != expected.loss
    assert found.loss == pytest.approx(expected.loss, rel=0.05, abs=0.02)


class LooksFirst:
    """A loss that evaluates the network without gradients before it does so with them."""

    def __call__(self, module: ActorCritic, target_module: Any, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        with torch.no_grad():
            module(minibatch["obs"])
        outputs, value = module(minibatch["obs"])
        self.dtypes = {outputs.dtype, value.dtype, module.critic(minibatch["obs"]).dtype}
        total = (outputs.sum(-1) + value).mean()
        return mf.LossTerms(total, {"total": total.detach()})

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing is scheduled."""


def test_a_loss_of_a_users_own_gets_float32_outputs_and_whole_gradients() -> None:
    loss, module = LooksFirst(), ActorCritic(VECTORS, mf.MLP((8,)), mf.MLP((8,)), seed=0)
    cast = mf.TorchLearner("p", module, loss, trains_on=mf.EstimatedBatch, learning_rate=1e-3, compute=BFLOAT16)
    cast.update(estimated(20))
    assert loss.dtypes == {torch.float32}
    assert all(bool(parameter.grad.any()) for parameter in cast.parameters.flat.parameters)
