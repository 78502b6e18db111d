"""Recurrent action values: what is learned on sequences is what acts, one step after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy.recurrent import RecurrentQNetwork
from tests.policy.row_random import row_random

SPACES = Spaces(gym.Box(-1.0, 1.0, (2,), np.float32), gym.Discrete(3))
AGENTS, STEPS = 40, 7
MODELS = [mf.GRU(hidden_size=5, encoder_sizes=(4,)), mf.LSTM(hidden_size=5, encoder_sizes=(4,))]


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_values_of_sequences_are_those_that_acted(model: mf.GRU | mf.LSTM, dueling: bool) -> None:
    """From what was remembered before any row, with whatever part of the rest as burn-in."""
    network = RecurrentQNetwork(SPACES, model, dueling, seed=1)
    generator = np.random.default_rng(2)
    obs = generator.normal(size=(AGENTS, STEPS, 2)).astype(np.float32)
    mask = generator.random((AGENTS, STEPS, 3)) < 0.6
    mask[..., 2] |= ~mask.any(-1)
    memory, remembered, actions = np.zeros((AGENTS, *model.memory_shape), np.float32), [], []
    for t in range(STEPS):
        remembered.append(memory)
        acted = network.actor.act(obs[:, t], mask[:, t], memory, "greedy", row_random(AGENTS, t))
        actions.append(acted.action)
        memory = acted.memory
    for first, burn_in in ((0, 0), (0, 4), (3, 2), (5, 1)):
        seen = torch.from_numpy(obs[:, first:])
        q = network(seen, torch.from_numpy(remembered[first]), torch.ones(seen.shape[:2], dtype=torch.bool), burn_in)
        legal = np.where(mask[:, first + burn_in :], q.detach().numpy(), -np.inf)
        np.testing.assert_array_equal(legal.argmax(-1), np.stack(actions[first + burn_in :], 1))


@pytest.mark.parametrize("model", MODELS)
def test_steps_that_are_not_there_change_nothing(model: mf.GRU | mf.LSTM) -> None:
    """Burn-in shorter than its room stands right before the rest: in front of it is nothing."""
    network = RecurrentQNetwork(SPACES, model, dueling=True, seed=1)
    obs, memory = torch.randn(3, 6, 2), torch.randn(3, *model.memory_shape)
    valid = torch.ones(3, 6, dtype=torch.bool)
    valid[0, :2] = valid[1, :1] = False
    q = network(obs, memory, valid, 3)
    for row, absent in enumerate((2, 1, 0)):
        alone = slice(row, row + 1)
        want = network(obs[alone, absent:], memory[alone], valid[alone, absent:], 3 - absent)
        torch.testing.assert_close(q[alone], want)


def test_the_burn_in_has_no_gradient() -> None:
    network = RecurrentQNetwork(SPACES, MODELS[0], dueling=False, seed=1)
    obs = torch.randn(2, 6, 2, requires_grad=True)
    network(obs, torch.zeros(2, 5), torch.ones(2, 6, dtype=torch.bool), 3).sum().backward()
    assert obs.grad is not None
    assert not obs.grad[:, :3].any()
    assert obs.grad[:, 3:].all()


def test_it_explores_as_often_as_epsilon_says() -> None:
    actor = RecurrentQNetwork(SPACES, MODELS[0], dueling=False, seed=1).actor
    memory, obs = np.zeros((AGENTS, 5), np.float32), np.zeros((AGENTS, 2), np.float32)
    greedy = actor.act(obs, None, memory, "greedy", row_random(AGENTS, 0))
    actor.set_schedule({"epsilon": 0.3})
    found = [actor.act(obs, None, memory, "explore", row_random(AGENTS, step)) for step in range(100)]
    others = np.mean([acted.action != greedy.action for acted in found])
    assert others == pytest.approx(0.2, abs=0.03)
    chosen = np.concatenate([np.where(acted.action == greedy.action, 0.8, 0.1) for acted in found])
    np.testing.assert_allclose(np.exp(np.concatenate([acted.behavior_logp for acted in found])), chosen, rtol=1e-5)
