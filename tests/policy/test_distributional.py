"""Networks of distributions: their expected values are what is acted on; dueling streams add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy.q import AtomsHead, DistributionalQNetwork
from tests.policy.row_random import row_random

SPACES = Spaces(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(4))


@pytest.mark.parametrize("dueling", [False, True])
def test_actor_takes_the_action_of_the_highest_expected_value(dueling: bool) -> None:
    network = DistributionalQNetwork(SPACES, mf.MLP((8,)), dueling, atoms=5, low=-2.0, high=6.0, seed=0)
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((40, 3)).astype(np.float32)
    logits = network.logits(torch.from_numpy(obs)).detach().double()
    assert logits.shape == (40, 4, 5)
    expected = np.zeros((40, 4))
    for row in range(40):
        for action in range(4):
            weights = [math.exp(x) for x in logits[row, action].tolist()]
            atoms = [-2.0, 0.0, 2.0, 4.0, 6.0]
            expected[row, action] = sum(w * z for w, z in zip(weights, atoms, strict=True)) / sum(weights)
    np.testing.assert_allclose(network(torch.from_numpy(obs)).detach().numpy(), expected, atol=1e-4)
    mask = rng.random((40, 4)) < 0.6
    mask[:, 3] = True
    generator = row_random(40)
    acted = network.actor.act(obs, mask, None, "greedy", generator)
    np.testing.assert_array_equal(acted.action, np.where(mask, expected, -np.inf).argmax(1))


def test_dueling_streams_are_centered_over_actions_atom_by_atom() -> None:
    head = AtomsHead(2, 3, torch.linspace(0.0, 1.0, 4), dueling=True, generator=torch.Generator().manual_seed(0))
    x = torch.tensor([[0.3, -0.7]])
    advantage = head.advantage(x).reshape(3, 4).tolist()
    state = head.state(x)[0].tolist() if head.state is not None else []
    for action in range(3):
        for atom in range(4):
            mean = math.fsum(other[atom] for other in advantage) / 3
            found = head.logits(x)[0, action, atom].item()
            assert found == pytest.approx(state[atom] + advantage[action][atom] - mean, abs=1e-5)


def test_all_parameters_are_the_actors_and_the_support_is_none() -> None:
    network = DistributionalQNetwork(SPACES, mf.MLP((8,)), True, atoms=5, low=0.0, high=1.0, seed=0)
    assert {id(p) for p in network.parameters()} == {id(p) for p in network.actor.parameters()}
    other = DistributionalQNetwork(SPACES, mf.MLP((8,)), True, atoms=5, low=0.0, high=1.0, seed=1)
    other.actor.load_flat(network.actor.flat())
    obs = torch.ones(2, 3)
    torch.testing.assert_close(other(obs), network(obs))
