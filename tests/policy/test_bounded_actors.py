"""Actors over a bounded Box: squashed Gaussian and deterministic, and uniform actions before either."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import marlflow as mf
from marlflow.policy.actor import MovableActor, WeightedActor
from marlflow.policy.box import BoxCoordinates, DeterministicActor, SquashedGaussianActor, squashed_sample
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.warmup import WarmupActor
from tests.policy.row_random import row_random

BOX = spaces.Box(np.array([[0.0, -3.0]], np.float32), np.array([[1.0, 5.0]], np.float32))
ROWS = 300


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def squashed(box: spaces.Box = BOX) -> SquashedGaussianActor:
    torso, features = mf.MLP((8,)).build((2,), generator())
    actor = SquashedGaussianActor(torso, features, box, generator(1))
    with torch.no_grad():
        actor.head.weight.mul_(60.0)
    return actor


def deterministic(noise: float = 0.3) -> DeterministicActor:
    torso, features = mf.MLP((8,)).build((2,), generator())
    actor = DeterministicActor(torso, features, BOX, generator(1), noise)
    with torch.no_grad():
        actor.head.weight.mul_(60.0)
    return actor


def observations(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, 2)).astype(np.float32)


def naive_log_density(mean: list[float], log_std: list[float], action: list[float]) -> float:
    """By the change of variables, in the Box's own coordinates and in float64."""
    total = 0.0
    bounds = [(0.0, 1.0), (-3.0, 5.0)]
    for m, s, a, (low, high) in zip(mean, log_std, action, bounds, strict=True):
        scale = (high - low) / 2
        inner = (a - (low + high) / 2) / scale
        z = (math.atanh(inner) - m) / math.exp(s)
        total += -0.5 * z * z - s - 0.5 * math.log(2.0 * math.pi) - math.log(scale * (1.0 - inner * inner))
    return total


def test_squashed_actions_are_in_the_box_and_their_density_is_exact() -> None:
    actor, obs = squashed(), observations()
    acted = actor.act(obs, None, None, "explore", row_random(ROWS))
    assert acted.action.shape == (ROWS, 1, 2)
    assert acted.action.dtype == acted.behavior_logp.dtype == np.float32
    assert ((acted.action >= BOX.low) & (acted.action <= BOX.high)).all()
    assert np.std(acted.action, 0).min() > 0.1
    with torch.no_grad():
        mean, log_std = actor(torch.from_numpy(obs))
    chosen = acted.action.reshape(ROWS, 2).astype(np.float64)
    # The inverse of the tanh, of an action kept in float32, knows little where the tanh is flat.
    flat = np.abs((chosen - [0.5, 1.0]) / [0.5, 4.0]).max(1) < 0.99
    assert flat.mean() > 0.5
    expected = [
        naive_log_density(m, s, a) for m, s, a in zip(mean.tolist(), log_std.tolist(), chosen.tolist(), strict=True)
    ]
    np.testing.assert_allclose(acted.behavior_logp[flat], np.array(expected)[flat], rtol=1e-3, atol=1e-3)


def test_the_density_of_a_squashed_component_is_one_in_all() -> None:
    mean, log_std = torch.tensor([[0.4]]), torch.tensor([[-0.3]])
    noise = torch.linspace(-9.0, 9.0, 20_001).unsqueeze(1)
    action, logp = squashed_sample(mean.expand_as(noise), log_std.expand_as(noise), noise)
    assert torch.trapezoid(logp.double().exp(), action.double().squeeze(1)).item() == pytest.approx(1.0, abs=1e-3)


@given(st.floats(-60.0, 60.0), st.floats(-20.0, 2.0), st.floats(-4.0, 4.0))
@settings(deadline=None)
def test_a_squashed_sample_and_its_gradient_are_finite(mean: float, log_std: float, noise: float) -> None:
    parameters = torch.tensor([[mean], [log_std]], requires_grad=True)
    action, logp = squashed_sample(parameters[:1], parameters[1:], torch.tensor([[noise]]))
    (action.sum() + logp.sum()).backward()
    assert parameters.grad is not None
    assert bool(torch.isfinite(parameters.grad).all())
    assert math.isfinite(logp.item())
    assert -1.0 <= action.item() <= 1.0


def test_the_standard_deviation_stays_between_its_bounds() -> None:
    actor = squashed()
    with torch.no_grad():
        actor.head.bias.copy_(torch.tensor([0.0, 0.0, 50.0, -50.0]))
        _, log_std = actor(torch.zeros(1, 2))
    assert log_std.tolist() == [[2.0, -20.0]]


def test_greedy_is_the_tanh_of_the_mean() -> None:
    actor, obs = squashed(), observations()
    acted = actor.act(obs, None, None, "greedy", row_random(ROWS))
    with torch.no_grad():
        mean, _ = actor(torch.from_numpy(obs))
    expected = np.array([0.5, 1.0]) + np.array([0.5, 4.0]) * np.tanh(mean.numpy())
    np.testing.assert_allclose(acted.action.reshape(ROWS, 2), expected, atol=1e-5)


def test_deterministic_actions_have_noise_of_the_scheduled_size_and_stay_in_the_box() -> None:
    actor, obs = deterministic(), observations()
    greedy = actor.act(obs, None, None, "greedy", row_random(ROWS))
    with torch.no_grad():
        inner = actor(torch.from_numpy(obs)).numpy()
    expected = np.array([0.5, 1.0]) + np.array([0.5, 4.0]) * inner
    np.testing.assert_allclose(greedy.action.reshape(ROWS, 2), expected, atol=1e-5)
    actor.set_schedule({"exploration_noise": 0.05, "epsilon": 1.0})
    acted = actor.act(obs, None, None, "explore", row_random(ROWS))
    moved = (acted.action - greedy.action).reshape(ROWS, 2) / [0.5, 4.0]
    free = np.abs(inner) < 0.8
    assert np.std(moved[free]) == pytest.approx(0.05, rel=0.15)
    assert ((acted.action >= BOX.low) & (acted.action <= BOX.high)).all()
    assert np.isnan(acted.behavior_logp).all()
    actor.set_schedule({"exploration_noise": 0.0})
    np.testing.assert_array_equal(actor.act(obs, None, None, "explore", row_random(ROWS)).action, greedy.action)


def test_the_same_streams_give_the_same_actions() -> None:
    for actor in (squashed(), deterministic()):
        first, second = (actor.act(observations(), None, None, "explore", row_random(ROWS)).action for _ in range(2))
        np.testing.assert_array_equal(first, second)
        assert (first[0] != first[1]).all()


@pytest.mark.parametrize("actor", [squashed(), deterministic()], ids=["squashed", "deterministic"])
def test_a_network_that_is_not_finite_says_so(actor: SquashedGaussianActor | DeterministicActor) -> None:
    with torch.no_grad():
        actor.head.bias.fill_(math.nan)
    with pytest.raises(mf.MarlflowError, match="not finite"):
        actor.act(observations(), None, None, "explore", row_random(ROWS))


# -- coordinates of the box -----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0.01, 1e3)), min_size=1, max_size=4), st.integers(0, 99))
@settings(deadline=None)
def test_actions_come_back_from_the_box_and_none_is_out_of_bounds(sides: list[tuple[float, float]], seed: int) -> None:
    low = np.array([side[0] for side in sides], np.float32)
    high = low + np.array([side[1] for side in sides], np.float32)
    box = spaces.Box(low, high)
    inner = np.random.default_rng(seed).uniform(-1.0, 1.0, (20, len(sides))).astype(np.float32)
    inner[0], inner[1] = -1.0, 1.0
    coordinates = BoxCoordinates(box)
    outer = coordinates.in_box(inner)
    assert ((outer >= box.low) & (outer <= box.high)).all()
    rounding = 1e-6 * (np.abs(low) + np.abs(high)) / (high - low) + 1e-6
    assert (np.abs(coordinates.within(torch.from_numpy(outer)).numpy() - inner) <= 4.0 * rounding).all()
    assert coordinates.log_volume == pytest.approx(sum(math.log(width / 2) for width in (high - low).tolist()))


def test_a_single_number_is_an_action_too() -> None:
    coordinates = BoxCoordinates(spaces.Box(-2.0, 2.0, (), np.float32))
    outer = coordinates.in_box(np.array([[0.5], [-1.0]], np.float32))
    np.testing.assert_array_equal(outer, np.array([1.0, -2.0], np.float32))
    assert coordinates.within(torch.from_numpy(outer)).tolist() == [[0.5], [-1.0]]


@pytest.mark.parametrize(
    ("box", "text"),
    [
        (spaces.Box(-1.0, np.inf, (2,)), "finite bounds"),
        (spaces.Box(np.array([0.0, 1.0], np.float32), np.array([1.0, 1.0], np.float32)), "every component can vary"),
    ],
)
def test_a_box_without_room_is_refused(box: spaces.Box, text: str) -> None:
    with pytest.raises(mf.ConfigInvalid, match=text):
        BoxCoordinates(box)


# -- uniform at first -----------------------------------------------------------------------------------------------


def test_uniform_at_first_then_the_actors_own() -> None:
    inner, obs = squashed(), observations()
    actor = WarmupActor(inner, BOX)
    own = inner.act(obs, None, None, "explore", row_random(ROWS))
    np.testing.assert_array_equal(actor.act(obs, None, None, "explore", row_random(ROWS)).action, own.action)
    actor.set_schedule({"acts_uniformly": 1.0})
    uniform = actor.act(obs, None, None, "explore", row_random(ROWS))
    parts = ((uniform.action - BOX.low) / (BOX.high - BOX.low)).reshape(ROWS, 2)
    for component in parts.T:
        counts = np.histogram(component, bins=4, range=(0.0, 1.0))[0]
        assert counts.sum() == ROWS
        assert counts.min() > ROWS / 4 * 0.7
    np.testing.assert_allclose(uniform.behavior_logp, -math.log(8.0), rtol=1e-6)
    greedy = actor.act(obs, None, None, "greedy", row_random(ROWS))
    np.testing.assert_array_equal(greedy.action, inner.act(obs, None, None, "greedy", row_random(ROWS)).action)
    actor.set_schedule({"exploration_noise": 0.1})
    assert actor.acts_uniformly
    actor.set_schedule({"acts_uniformly": 0.0})
    np.testing.assert_array_equal(actor.act(obs, None, None, "explore", row_random(ROWS)).action, own.action)


def test_uniform_at_first_keeps_to_legal_actions() -> None:
    torso, features = mf.MLP((8,)).build((2,), generator())
    actor = WarmupActor(CategoricalActor(torso, features, 4, generator()), spaces.Discrete(4))
    actor.set_schedule({"acts_uniformly": 1.0})
    mask = np.random.default_rng(0).random((ROWS, 4)) < 0.5
    mask[:, 2] = True
    acted = actor.act(observations(), mask, None, "explore", row_random(ROWS))
    assert mask[np.arange(ROWS), acted.action].all()
    assert set(acted.action.tolist()) == {0, 1, 2, 3}
    np.testing.assert_allclose(acted.behavior_logp, -np.log(mask.sum(1)), rtol=1e-6)


def test_it_is_an_actor_with_the_parameters_of_the_one_within() -> None:
    first, other = squashed(), squashed()
    with torch.no_grad():
        other.head.bias.add_(1.0)
    actor = WarmupActor(first, BOX)
    assert isinstance(actor, WeightedActor)
    assert isinstance(actor, MovableActor)
    actor.load_flat(other.flat())
    np.testing.assert_array_equal(actor.flat(), other.flat())
    np.testing.assert_array_equal(first.flat(), other.flat())
    actor.move_to("cpu")
    assert first.device is None


class Narrow(SquashedGaussianActor):
    """Acts with a hundredth of the standard deviation that its network says, on the other side."""

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = super().forward(obs)
        return -mean, log_std - math.log(100.0)


def test_an_overridden_forward_acts_as_it_learns() -> None:
    torso, features = mf.MLP((8,)).build((2,), generator())
    actor, obs = Narrow(torso, features, BOX, generator(1)), observations()
    mean, log_std = actor(torch.from_numpy(obs))
    acted = actor.act(obs, None, None, "sampled", row_random(ROWS))
    for row in range(3):
        expected = naive_log_density(mean[row].tolist(), log_std[row].tolist(), acted.action[row].ravel().tolist())
        assert acted.behavior_logp[row] == pytest.approx(expected, abs=0.05)
