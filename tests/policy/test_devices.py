"""An actor chooses the same wherever it computes; arrays come in and go out."""

from __future__ import annotations

import socket

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import Compute
from marlflow.policy.actor import MovableActor, WeightedActor
from marlflow.policy.tensors import usable_device

OBSERVED = gym_spaces.Box(-1.0, 1.0, (3,))
DISCRETE, BOX = Spaces(OBSERVED, gym_spaces.Discrete(4)), Spaces(OBSERVED, gym_spaces.Box(-1.0, 1.0, (2,)))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("algorithm", "spaces"),
    [(mf.PPO(), DISCRETE), (mf.PPO(), BOX), (mf.DQN(), DISCRETE), (mf.DQN(dueling=True), DISCRETE)],
)
def test_a_moved_actor_chooses_the_same(algorithm: mf.Algorithm, spaces: Spaces, device: str) -> None:
    here, there = (algorithm.actor(spaces, mf.MLP((16,)), seed=seed) for seed in (1, 2))
    assert isinstance(here, WeightedActor)
    assert isinstance(there, WeightedActor)
    assert isinstance(there, MovableActor)
    there.move_to(device)
    there.load_flat(here.flat())
    np.testing.assert_array_equal(there.flat(), here.flat())
    obs = np.random.default_rng(0).uniform(-1, 1, (64, 3)).astype(np.float32)
    for actor in (here, there):
        actor.set_schedule({"epsilon": 0.3})
    for mode in ("explore", "greedy"):
        random = [mf.RowRandom(np.arange(64, dtype=np.uint64), np.arange(64)) for _ in range(2)]
        own = here.act(obs, None, None, mode, random[0])
        moved = there.act(obs, None, None, mode, random[1])
        np.testing.assert_allclose(moved.action, own.action, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(moved.behavior_logp, own.behavior_logp, rtol=1e-4, atol=1e-4)


def test_a_gpu_that_torch_does_not_see_is_one_error_with_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(mf.ConfigInvalid, match=f"on {socket.gethostname()} is to compute on cuda:1, and torch"):
        usable_device("cuda:1")
    assert usable_device("cpu") == torch.device("cpu")
    with pytest.raises(mf.ConfigInvalid, match="to compute on cuda, and torch"):
        Compute("cuda").prepared(torch.nn.Linear(1, 1))
    actor = mf.PPO().actor(DISCRETE, mf.MLP((4,)), seed=0)
    assert isinstance(actor, MovableActor)
    with pytest.raises(mf.ConfigInvalid, match="to compute on cuda, and torch"):
        actor.move_to("cuda")
