"""Mixers: what increases with what, what absent agents change, and what a mixer sees."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from marlflow.base.spaces import Spaces
from marlflow.policy.mixers import MixerInput, MonotonicMixer, SumMixer
from marlflow.policy.normalized import NormalizedRows

SEATS, WIDTH, ROWS = 3, 6, 5


def mixer(layers: int, seed: int = 0, embed: int = 8) -> MonotonicMixer:
    return MonotonicMixer(SEATS, WIDTH, embed, layers, torch.Generator().manual_seed(seed))


def rows(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values of agents, presence and what the mixer sees."""
    generator = torch.Generator().manual_seed(seed)
    present = (torch.rand(ROWS, SEATS, generator=generator) < 0.7).float()
    return 3.0 * torch.randn(ROWS, SEATS, generator=generator), present, torch.randn(ROWS, WIDTH, generator=generator)


@given(st.sampled_from([1, 2]), st.integers(0, 10**6))
def test_the_teams_value_increases_with_each_agents(layers: int, seed: int) -> None:
    q, present, seen = rows(seed)
    q.requires_grad_()
    mixer(layers, seed)(q, present, seen).sum().backward()
    assert q.grad is not None
    assert (q.grad >= 0).all()
    assert (q.grad[present == 0] == 0).all()
    assert (q.grad[present == 1] > 0).any() or not present.any()


@given(st.sampled_from([0, 1, 2]), st.integers(0, 10**6))
def test_the_best_joint_action_is_each_agents_best(layers: int, seed: int) -> None:
    made: nn.Module = mixer(layers, seed) if layers else SumMixer()
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(SEATS, 3, generator=generator)
    joint = list(product(range(3), repeat=SEATS))
    seen = torch.randn(1, WIDTH, generator=generator).expand(len(joint), -1)
    taken = torch.stack([q[torch.arange(SEATS), torch.tensor(actions)] for actions in joint])
    values = made(taken, torch.ones(len(joint), SEATS), seen)
    best = joint[int(values.argmax())]
    greedy = tuple(q.argmax(1).tolist())
    # Saturated mixers may value several joint actions equally.
    assert best == greedy or values[joint.index(greedy)] == values.max()


@pytest.mark.parametrize("layers", [1, 2])
def test_the_mixer_against_a_loop_over_rows_and_units(layers: int) -> None:
    made = mixer(layers)
    q, present, seen = rows(0)
    found = made(q, present, seen)
    for n in range(ROWS):
        w1 = made.w1(seen[n]).abs().reshape(SEATS, 8)
        b1, w2 = made.b1(seen[n]), made.w2(seen[n]).abs()
        total = made.v(seen[n])[0]
        for unit in range(8):
            x = sum(q[n, k] * present[n, k] * w1[k, unit] for k in range(SEATS)) + b1[unit]
            total = total + w2[unit] * (x if x > 0 else torch.exp(x) - 1.0)
        assert float(found[n].detach()) == pytest.approx(float(total.detach()), rel=1e-5, abs=1e-5)


def test_it_represents_what_no_sum_can() -> None:
    """The game [[0, 0], [0, 10]]: fitted by gradient descent, QMIX's error vanishes and VDN's stays at 6.25."""
    generator = torch.Generator().manual_seed(0)
    payoff = torch.tensor([[0.0, 0.0], [0.0, 10.0]])
    joint = torch.tensor(list(product(range(2), repeat=2)))
    mixers: dict[str, nn.Module] = {"qmix": MonotonicMixer(2, 1, 8, 1, generator), "vdn": SumMixer()}
    errors = {}
    for name, made in mixers.items():
        q = nn.Parameter(0.1 * torch.randn(2, 2, generator=generator))
        optimizer = torch.optim.Adam([q, *made.parameters()], 0.05)
        for _ in range(400):
            taken = torch.stack([q[0, joint[:, 0]], q[1, joint[:, 1]]], 1)
            error = (made(taken, torch.ones(4, 2), torch.ones(4, 1)) - payoff.flatten()).square().mean()
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
        errors[name] = float(error.detach())
    assert errors["qmix"] < 0.01
    assert errors["vdn"] == pytest.approx(6.25, abs=0.01)


def test_seeds_decide_the_weights_and_zero_states_have_weights_too() -> None:
    q, present, _ = rows(0)
    zero = torch.zeros(ROWS, WIDTH)
    first, again, other = (mixer(1, seed)(q, present, zero) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(
        mixer(1)(q, torch.ones_like(present), zero), mixer(1)(q + 1.0, torch.ones_like(present), zero)
    )


PIXELS = gym.Box(0, 255, (2, 2, 1), np.uint8)
NESTED = gym.Dict({"choice": gym.Discrete(3), "picture": PIXELS})


def test_a_mixer_sees_the_state_and_who_is_present() -> None:
    spaces = Spaces(gym.Box(-1, 1, (2,)), gym.Discrete(2), state=PIXELS, num_agents=2, seats=(0, 1))
    seen = MixerInput({"a": spaces}, "state")
    present = torch.tensor([[1.0, 0.0]])
    state = torch.tensor([0, 51, 102, 255], dtype=torch.uint8).view(1, 2, 2, 1)
    assert seen.width == 6
    assert seen({"state": state}, present, "")[0].tolist() == pytest.approx([0.0, 0.2, 0.4, 1.0, 1.0, 0.0])
    assert seen({"next_state": state}, present, "next_")[0, -2:].tolist() == [1.0, 0.0]


def test_a_mixer_sees_all_observations_as_numbers() -> None:
    vector = Spaces(gym.Box(-1, 1, (2,), np.float32), gym.Discrete(2), seats=(0, 2))
    nested = Spaces(NESTED, gym.Discrete(2), seats=(1,))
    seen = MixerInput({"vector": vector, "nested": nested}, "observations")
    row = np.array([0, 1, 0, 0, 255, 51, 0], np.uint8)
    assert row.shape == nested.obs_shape
    columns = {
        "vector:obs": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]),
        "nested:obs": torch.from_numpy(row).view(1, 1, -1),
    }
    found = seen(columns, torch.tensor([[1.0, 1.0, 1.0]]), "")
    assert seen.width == found.shape[1]
    expected = [1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.2, 0.0, 1.0, 1.0, 1.0]
    assert found[0].tolist() == pytest.approx(expected)


def test_an_agent_that_is_absent_has_zeros_also_where_numbers_are_normalized() -> None:
    spaces = Spaces(gym.Box(-99, 99, (2,), np.float32), gym.Discrete(2), seats=(0, 1))
    seen = MixerInput({"a": spaces}, "observations", normalizes=True)
    rows = torch.from_numpy(np.random.default_rng(0).normal(50.0, 2.0, (500, 2, 2)).astype(np.float32))
    (normalized,) = (part for part in seen.modules() if isinstance(part, NormalizedRows))
    normalized.observe({"a:obs": rows, "a:present": torch.ones(500, 2, dtype=torch.bool)})
    now = torch.stack((rows[0, 0], torch.zeros(2)))[None]
    found = seen({"a:obs": now}, torch.tensor([[1.0, 0.0]]), "")[0]
    assert found[2:].tolist() == [0.0, 0.0, 1.0, 0.0]
    assert found[:2].tolist() == pytest.approx(((rows[0, 0] - 50.0) / 2.0).tolist(), abs=0.2)


def test_what_a_mixer_sees_can_be_squashed_but_not_who_is_present() -> None:
    spaces = Spaces(gym.Box(-9, 9, (4,), np.float32), gym.Discrete(2), seats=(0,))
    seen = MixerInput({"a": spaces}, "observations", squashes=True)
    found = seen({"a:obs": torch.tensor([[[0.0, np.e - 1.0, 1.0 - np.e, -1e30]]])}, torch.tensor([[1.0]]), "")
    assert found[0].tolist() == pytest.approx([0.0, 1.0, -1.0, -30.0 * np.log(10.0), 1.0])
