"""The values that VDN and QMIX give to actions before learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

import marlflow as mf
from marlflow.base.spaces import Spaces

OF_CELLS = Spaces(spaces.Box(-1.0, 10.0, (18,)), spaces.Discrete(6), seats=(0, 1, 2))


@pytest.mark.parametrize("model", [mf.MLP((128, 128)), mf.GRU(32, (32,))], ids=["mlp", "gru"])
@pytest.mark.parametrize("dueling", [False, True])
def test_no_action_is_worth_more_than_a_small_reward(model: mf.TorsoConfig, dueling: bool) -> None:
    """Else the maximum over actions, which the team's sum takes for each agent, is above all that could be received."""
    seen = torch.from_numpy(np.random.default_rng(0).integers(-1, 10, (500, 18)).astype(np.float32))
    for algorithm in (mf.VDN(dueling=dueling), mf.QMIX(dueling=dueling, mixer_sees="observations")):
        actor = algorithm.network({"team": mf.Member(OF_CELLS, model)}, 0).actors["team"]
        if isinstance(model, mf.GRU):
            values = actor.unroll(seen[:, None], torch.zeros(500, 32), torch.ones(500, 1, dtype=torch.bool))[0]
        else:
            values = actor(seen)
        assert 0.0 < float(values.detach().abs().max()) < 0.05
    assert float(mf.DQN().network(OF_CELLS, mf.MLP((128, 128)), 0)(seen).detach().std()) > 0.5
