"""Torsos with memory: each step is torch's own, sequences are steps one after the other, and absent rows are none."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy.actor import MovableActor, RecurrentActor, WeightedActor
from marlflow.policy.q import QActor
from marlflow.policy.recurrent import (
    RecurrentActorCritic,
    RecurrentNetworkActor,
    build_recurrent_torso,
    recurrent_stochastic_actor,
)
from tests.policy.row_random import row_random

S, T, D, H = 5, 7, 3, 8
MODELS = pytest.mark.parametrize("model", [mf.GRU(H, (6,)), mf.LSTM(H, (6,))], ids=["gru", "lstm"])
SPACES = Spaces(gym.Box(-1, 1, (D,)), gym.Discrete(4), masked=True)


def torso_of(model, spaces=SPACES):
    """A torso whose biases are not zero, so that one that is left out shows."""
    generator = torch.Generator().manual_seed(3)
    torso, features = build_recurrent_torso(spaces, model, generator)
    assert features == torso.features == model.hidden_size
    assert torso.memory_shape == model.memory_shape
    with torch.no_grad():
        for parameter in torso.parameters():
            if parameter.dim() == 1:
                parameter.normal_(generator=generator)
    return torso


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("model", "like"), [(mf.GRU(H, (6,)), nn.GRU), (mf.LSTM(H, (6,)), nn.LSTM)])
def test_a_sequence_is_what_torchs_own_layer_makes_of_it(model, like):
    torso, own = torso_of(model), like(6, H, batch_first=True)
    own.load_state_dict(
        {
            "weight_ih_l0": torso.by_input.weight,
            "weight_hh_l0": torso.by_memory.weight,
            "bias_ih_l0": torso.by_input.bias,
            "bias_hh_l0": torso.by_memory.bias,
        }
    )
    obs, memory = drawn(S, T, D), drawn(S, *model.memory_shape, seed=1)
    found, after = torso.unroll(obs, memory, torch.ones(S, T, dtype=torch.bool))
    parts = memory.reshape(S, -1, H).transpose(0, 1).contiguous()
    expected, last = own(
        torso.encoder(obs.flatten(0, 1)).unflatten(0, (S, T)), parts if like is nn.GRU else (*parts.unsqueeze(1),)
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(after.reshape(S, -1, H).transpose(0, 1), last if like is nn.GRU else torch.cat(last))


@settings(max_examples=25)
@given(arrays.arrays(bool, (S, T)), st.booleans())
def test_a_sequence_is_its_steps_one_after_the_other_and_absent_ones_are_none(there, gated):
    torso = torso_of(mf.GRU(H, (6,)) if gated else mf.LSTM(H, (6,)))
    obs, before = drawn(S, T, D), drawn(S, *torso.memory_shape, seed=1)
    found, after = torso.unroll(obs, before, torch.from_numpy(there))
    for number in range(S):
        memory = before[number : number + 1]
        for t in np.flatnonzero(there[number]):
            features, memory = torso.step(obs[number : number + 1, t], memory)
            torch.testing.assert_close(found[number : number + 1, t], features)
        torch.testing.assert_close(after[number : number + 1], memory)


@MODELS
def test_gradients_flow_back_to_the_first_step(model):
    torso, obs = torso_of(model), drawn(S, T, D).requires_grad_()
    features, _ = torso.unroll(obs, torch.zeros(S, *model.memory_shape), torch.ones(S, T, dtype=torch.bool))
    features[:, -1].sum().backward()
    assert obs.grad.abs().amin((0, 2)).gt(0).all()


@MODELS
@pytest.mark.parametrize(
    "observation",
    [
        gym.Dict({"arm": gym.Box(-1, 1, (2, 3)), "where": gym.Discrete(4)}),
        gym.Dict({"seen": gym.Box(0, 255, (4, 4, 3), np.uint8), "where": gym.Discrete(4)}),
    ],
    ids=["flat", "packed"],
)
def test_observations_of_several_parts_are_seen_side_by_side(model, observation):
    spaces = Spaces(observation, gym.Discrete(2))
    torso = torso_of(model, spaces)
    rows = torch.from_numpy(spaces.encoder().stack([observation.sample() for _ in range(S)]))
    features, after = torso.step(rows, torch.zeros(S, *model.memory_shape))
    assert (features.shape, after.shape) == ((S, H), (S, *model.memory_shape))


def test_which_models_have_memory():
    found = [isinstance(model, mf.RecurrentTorsoConfig) for model in (mf.GRU(), mf.LSTM(), mf.MLP(), mf.CNN())]
    assert found == [True, True, False, False]


@MODELS
@pytest.mark.parametrize("action", [gym.Discrete(4), gym.Box(-2.0, 2.0, (2,))], ids=["discrete", "box"])
def test_an_actor_reports_the_probability_that_its_network_gives_and_what_it_then_remembers(model, action):
    spaces = Spaces(gym.Box(-1, 1, (D,)), action, masked=isinstance(action, gym.Discrete))
    actor = recurrent_stochastic_actor(spaces, model, torch.Generator().manual_seed(1))
    assert all(isinstance(actor, kind) for kind in (RecurrentActor, WeightedActor, MovableActor))
    obs, memory = drawn(64, D).numpy(), drawn(64, *model.memory_shape, seed=1).numpy()
    mask = np.random.default_rng(0).random((64, 4)) < 0.6
    mask[:, 0] = True
    acted = actor.act(obs, mask if spaces.masked else None, memory, "explore", row_random(64))
    with torch.no_grad():
        features, after = actor.torso.step(torch.from_numpy(obs), torch.from_numpy(memory))
        logp, _ = actor.head.log_prob_and_entropy(
            actor.head.head(features), torch.from_numpy(acted.action), torch.from_numpy(mask) if spaces.masked else None
        )
    np.testing.assert_allclose(acted.behavior_logp, logp.numpy(), atol=1e-6)
    np.testing.assert_allclose(acted.memory, after.numpy(), atol=1e-6)
    assert acted.action.dtype == spaces.action_dtype
    if spaces.masked:
        assert mask[np.arange(64), acted.action].all()
        assert len(set(acted.action.tolist())) == 4


def test_an_actor_of_action_values_takes_its_epsilon():
    torso = torso_of(mf.GRU(H, (6,)))
    actor = RecurrentNetworkActor(torso, QActor(nn.Identity(), nn.Linear(H, 4)))
    obs, memory = drawn(64, D).numpy(), np.zeros((64, H), np.float32)
    greedy = actor.act(obs, None, memory, "greedy", row_random(64)).action
    chosen = []
    for epsilon in (0.0, 1.0):
        actor.set_schedule({"epsilon": epsilon})
        chosen.append(actor.act(obs, None, memory, "explore", row_random(64)).action)
    np.testing.assert_array_equal(chosen[0], greedy)
    assert (chosen[1] != greedy).mean() > 0.5


@MODELS
def test_published_parameters_make_another_actor_the_same(model):
    one, other = (recurrent_stochastic_actor(SPACES, model, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    obs, memory = drawn(9, D).numpy(), drawn(9, *model.memory_shape).numpy()

    def after(actor):
        return actor.act(obs, None, memory, "greedy", row_random(9))

    assert not np.array_equal(after(one).memory, after(other).memory)
    other.load_flat(one.flat())
    for left, right in zip(after(one), after(other), strict=True):
        np.testing.assert_array_equal(left, right)


@MODELS
def test_the_critic_values_a_row_after_its_memory_as_the_whole_sequence_does(model):
    module = RecurrentActorCritic(SPACES, model, seed=0)
    obs, memory = drawn(S, T, D), torch.zeros(S, *model.memory_shape)
    with torch.no_grad():
        _, values = module(obs, memory, torch.ones(S, T, dtype=torch.bool))
        for t in range(T):
            torch.testing.assert_close(module.critic(obs[:, t], memory), values[:, t])
            _, memory = module.actor.torso.step(obs[:, t], memory)
