"""Members of a stack act as each one's own actor would; the loop exactly, batched calls to rounding."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from torch import nn

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy import stacked
from marlflow.policy.actor_critic import stochastic_actor
from marlflow.policy.box import DeterministicActor, SquashedGaussianActor
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.q import QActor
from marlflow.policy.recurrent import RecurrentQNetwork, recurrent_stochastic_actor
from marlflow.policy.stacked import RowGroups, SeparateMembers, StackedMembers, members_of
from marlflow.policy.torso import build_torso
from marlflow.policy.warmup import WarmupActor

MASKED = Spaces(gym.Box(-1, 1, (5,)), gym.Discrete(4), masked=True)
BOX = Spaces(gym.Box(-1, 1, (5,)), gym.Box(-2.0, 1.0, (2,)))
IMAGE = Spaces(gym.Box(0, 255, (6, 6, 2), np.uint8), gym.Discrete(4))
TOKENS = Spaces(gym.MultiDiscrete([5] * 3), gym.Discrete(4))
SMALL = mf.MLP((8, 6))
NORMALIZED = mf.MLP((8, 6), normalize_observations=True)
SEED = 7
IMAGES = mf.CNN((4,), (3,), (1,), (8,))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def bounded(kind: Any) -> Any:
    torso, features = build_torso(BOX, SMALL, generator())
    return kind(torso, features, BOX.action, generator())


def warmed() -> WarmupActor:
    return WarmupActor(mf.QNetwork(MASKED, SMALL, False, 0).actor, MASKED.action)


# Spaces, and what makes an actor.
ACTORS: dict[str, tuple[Spaces, Any]] = {
    "mlp": (MASKED, lambda: stochastic_actor(MASKED, SMALL, generator())),
    "relu": (MASKED, lambda: stochastic_actor(MASKED, mf.MLP((8,), "relu"), generator())),
    "normalized": (MASKED, lambda: stochastic_actor(MASKED, NORMALIZED, generator())),
    "cnn": (IMAGE, lambda: stochastic_actor(IMAGE, IMAGES, generator())),
    "transformer": (TOKENS, lambda: stochastic_actor(TOKENS, mf.Transformer(1, 8, 2), generator())),
    "gru": (MASKED, lambda: recurrent_stochastic_actor(MASKED, mf.GRU(8, (6,)), generator())),
    "lstm": (BOX, lambda: recurrent_stochastic_actor(BOX, mf.LSTM(8, (6,)), generator())),
    "q": (MASKED, lambda: mf.QNetwork(MASKED, SMALL, False, 0).actor),
    "dueling": (MASKED, lambda: mf.QNetwork(MASKED, SMALL, True, 0).actor),
    "recurrent_q": (MASKED, lambda: RecurrentQNetwork(MASKED, mf.GRU(8, (6,)), False, 0).actor),
    "gaussian": (BOX, lambda: stochastic_actor(BOX, SMALL, generator())),
    "squashed": (BOX, lambda: bounded(SquashedGaussianActor)),
    "deterministic": (BOX, lambda: bounded(DeterministicActor)),
    "warmup": (MASKED, warmed),
}
LOOPED = ACTORS.keys() - {"mlp", "relu", "q", "warmup"}
"""Those whose network is not plain dense layers."""


class Case:
    """Members 0 to `members` - 1 of one kind of actor, and rows of observations for them."""

    def __init__(self, name: str, members: int, slot_of_row: Any, same_weights: bool = False) -> None:
        self.spaces, self.make = ACTORS[name]
        self.random = np.random.default_rng(SEED)
        self.spaces.observation.seed(SEED)
        self.groups = RowGroups.of(np.asarray(slot_of_row))
        self.own = [self.make() for _ in range(members)]
        drawn = [self.random.standard_normal(self.own[0].flat().shape).astype(np.float32) for _ in range(members)]
        # Variances among them, which are not negative.
        flats = [np.abs(drawn[0 if same_weights else member]) * 0.5 for member in range(members)]
        schedules = [{"epsilon": 0.1 + 0.02 * member, "exploration_noise": 0.1 * member} for member in range(members)]
        # The first that is loaded: a whole number must not make all others whole.
        schedules[-1] = {"epsilon": 1, "exploration_noise": 1}
        if name == "warmup":
            schedules = [{**one, "acts_uniformly": float(member % 3 == 1)} for member, one in enumerate(schedules)]
        if same_weights:
            schedules = [schedules[0]] * members
        self.stack = members_of(self.make, self.make())
        # In another order than that of slots, so that growth is exercised too.
        for slot in reversed(range(members)):
            self.stack.load(slot, flats[slot], schedules[slot])
            self.own[slot].load_flat(flats[slot])
            self.own[slot].set_schedule(schedules[slot])
        rows = len(self.groups.place)
        self.obs = self.spaces.encoder().stack([self.spaces.observation.sample() for _ in range(rows)])
        self.mask = self.random.random((rows, 4)) < 0.6 if self.spaces.masked else None
        if self.mask is not None:
            self.mask[:, 0] = True
        shape = getattr(self.own[0], "memory_shape", None)
        self.memory = None if shape is None else self.random.standard_normal((rows, *shape)).astype(np.float32)

    def rows_random(self) -> mf.RowRandom:
        rows = len(self.groups.place)
        return mf.RowRandom(np.arange(rows).astype(np.uint64), np.full(rows, 3), np.arange(rows))

    def acted(self, mode: Any) -> Any:
        return self.stack.act(self.groups, self.obs, self.mask, self.memory, mode, self.rows_random())

    def expected(self, mode: Any, one_row: bool = False) -> list[Any]:
        """Actions, log-probabilities and memories of each member's own actor, by group."""
        found = []
        for slot, start, stop in self.groups.spans:
            rows = np.arange(start, stop)
            mask = None if self.mask is None else self.mask[rows]
            memory = None if self.memory is None else self.memory[rows]
            found.append(self.own[slot].act(self.obs[rows], mask, memory, mode, self.rows_random().only(rows)))
        columns = zip(*found, strict=True)
        return [None if column[0] is None else np.concatenate(column) for column in columns]


@pytest.mark.parametrize("mode", ["explore", "sampled", "greedy"])
@pytest.mark.parametrize("name", ACTORS)
def test_a_loop_over_members_is_exactly_each_ones_own_actor(name: str, mode: Any) -> None:
    case = Case(name, 5, [4, 4, 1, 2, 2, 2])
    for found, expected in zip(case.acted(mode), case.expected(mode), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["explore", "sampled", "greedy"])
@pytest.mark.parametrize("name", ACTORS)
def test_batched_members_act_as_each_ones_own_actor(name: str, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "_FEWEST_VMAPPED", 8)
    case = Case(name, 12, np.repeat([3, 0, 1, 2, 11, 10, 5, 7, 8], [3, 1, 2, 2, 1, 4, 1, 1, 2]))
    # The first call is a loop for the networks that a vmapped call is checked with.
    for _ in range(2):
        for found, expected in zip(case.acted(mode), case.expected(mode), strict=True):
            if expected is not None and expected.dtype == np.float32:
                np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", sorted(LOOPED))
def test_networks_that_are_not_dense_layers_are_vmapped_from_sixteen_groups_on(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(name, 16, np.arange(16))
    case.acted("greedy")
    monkeypatch.setattr(StackedMembers, "_one_by_one", None)
    case.acted("greedy")


@pytest.mark.parametrize("name", ["mlp", "q"])
def test_many_groups_of_dense_layers_take_one_call_for_each_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, calls, batched = Case(name, 9, np.arange(9)), [], torch.baddbmm
    monkeypatch.setattr(torch, "baddbmm", lambda *given: calls.append(0) or batched(*given))
    case.acted("greedy")
    assert len(calls) == 3
    # One group with most rows: padding would multiply the rows.
    uneven = Case(name, 9, [0] * 40 + [1, 2, 3, 4, 5, 6, 7, 8])
    uneven.acted("greedy")
    assert len(calls) == 3


@pytest.mark.parametrize("name", ACTORS)
def test_copies_of_one_member_act_as_one(name: str) -> None:
    case = Case(name, 50, np.sort(np.random.default_rng(1).integers(0, 50, 64)), same_weights=True)
    case.acted("explore")
    found = case.acted("explore")
    one = case.own[0].act(case.obs, case.mask, case.memory, "explore", case.rows_random())
    for column, expected in zip(found, one, strict=True):
        if expected is not None:
            np.testing.assert_allclose(column, expected, rtol=2e-5, atol=1e-5)


def test_a_member_keeps_its_answers_while_others_come_and_go() -> None:
    case = Case("mlp", 3, [1, 1, 1])
    before = case.acted("sampled")
    flat = case.own[0].flat()
    for slot in (0, 2, 9, 30):
        case.stack.load(slot, 3 * flat, {"epsilon": 1.0, "exploration_noise": 0.0})
    after = case.acted("sampled")
    np.testing.assert_array_equal(before.behavior_logp, after.behavior_logp)


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(mf.WeightsMismatch, match=r"expected a flat vector of \d+ parameters for CategoricalActor, got"):
        StackedMembers(ACTORS["mlp"][1]()).load(0, np.zeros(3, np.float32), {})


@pytest.mark.parametrize("name", ["mlp", "gru"])
def test_networks_beyond_the_size_that_pays_are_looped_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "LARGEST_BATCHED", 10)
    case = Case(name, 20, np.arange(20))
    for _ in range(2):
        for found, expected in zip(case.acted("sampled"), case.expected("sampled"), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_large_networks_act_by_their_published_weights_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "LARGEST_STACKED", 10)
    monkeypatch.setattr(stacked, "LARGEST_BATCHED", 10)
    for name in ("mlp", "cnn"):
        case = Case(name, 12, np.arange(12))
        found, expected = case.acted("sampled"), case.expected("sampled")
        np.testing.assert_array_equal(found.action, expected[0])
        # Parameters in one vector are not aligned as an actor's own.
        np.testing.assert_allclose(found.behavior_logp, expected[1], rtol=2e-5, atol=1e-5)
        flat = case.own[0].flat()
        flat.flags.writeable = False
        case.stack.load(0, flat, {"epsilon": 0.1, "exploration_noise": 0.0})
        assert case.stack._views[0][0].data_ptr() == flat.ctypes.data  # type: ignore[attr-defined]


class Elsewhere(nn.Module):
    """Reads its weight by a list, which torch.func does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 6)
        self.listed = [self.linear.weight]

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs @ self.listed[0].t()


class Branching(nn.Module):
    """Computes by numbers in Python, which cannot be vectorized."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 6)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.linear(obs) * (2.0 if float(self.linear.weight.sum()) > 0 else -1.0)


@pytest.mark.parametrize("kind", [Elsewhere, Branching])
def test_networks_that_vmap_computes_wrongly_or_not_at_all_are_looped_over(
    kind: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(ACTORS, "odd", (MASKED, lambda: CategoricalActor(kind(), 6, 4, generator())))
    case = Case("odd", 16, np.arange(16))
    for _ in range(2):
        for found, expected in zip(case.acted("sampled"), case.expected("sampled"), strict=True):
            np.testing.assert_array_equal(found, expected)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("frozen versions of CategoricalActor act one after the other")


class Stubborn(CategoricalActor):
    """Acts otherwise than its network says."""

    def act(self, obs: Any, *given: Any) -> Any:
        acted = super().act(obs, *given)
        return acted._replace(action=np.zeros_like(acted.action))


class Loads(CategoricalActor):
    """Acts with other weights than it is given: its last action always."""

    def load_flat(self, flat: Any) -> None:
        super().load_flat(flat)
        with torch.no_grad():
            self.head.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 100.0]))


def test_an_actor_that_loads_weights_in_its_own_way_does_so() -> None:
    torso, features = build_torso(MASKED, SMALL, generator())
    make = partial(Loads, torso, features, 4, generator())
    members = members_of(make, make())
    for slot in range(3):
        members.load(slot, make().flat(), {})
    rows = RowGroups.of(np.arange(3)), np.zeros((3, 5), np.float32), None, None
    acted = members.act(*rows, "sampled", mf.RowRandom(*np.ones((2, 3), np.uint64)))
    assert acted.action.tolist() == [3, 3, 3]


class Bounded(QActor):
    """Explores a little at least."""

    def set_schedule(self, values: Any) -> None:
        super().set_schedule({"epsilon": max(values.get("epsilon", 0.0), 0.2)})


def test_schedules_of_members_reach_an_own_actor_one_by_one() -> None:
    def make() -> Bounded:
        return Bounded(nn.Identity(), nn.Linear(5, 4))

    members = members_of(make, make())
    for slot, epsilon in enumerate((0.1, 0.3)):
        members.load(slot, make().flat(), {"epsilon": epsilon})
    obs = np.zeros((2, 5), np.float32)
    acted = members.act(
        RowGroups.of(np.arange(2)), obs, None, None, "explore", mf.RowRandom(*np.full((2, 2), 9, np.uint64))
    )
    likely = np.exp(acted.behavior_logp)
    assert all(
        np.isclose(likely[row], epsilon / 4) or np.isclose(likely[row], 1 - 3 * epsilon / 4)
        for row, epsilon in enumerate((0.2, 0.3))
    )


def test_an_actor_of_another_kind_acts_by_itself() -> None:
    torso, features = build_torso(MASKED, SMALL, generator())
    make = partial(Stubborn, torso, features, 4, generator())
    members = members_of(make, make())
    assert isinstance(members, SeparateMembers)
    for slot in range(3):
        members.load(slot, make().flat(), {})
    obs = np.zeros((3, 5), np.float32)
    acted = members.act(
        RowGroups.of(np.arange(3)), obs, None, None, "sampled", mf.RowRandom(*np.ones((2, 3), np.uint64))
    )
    assert acted.action.tolist() == [0, 0, 0]


def test_dropout_is_off_when_members_act() -> None:
    def make() -> CategoricalActor:
        torso = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Dropout(0.5))
        return CategoricalActor(torso, 32, 4, generator())

    own, members = make(), members_of(make, make())
    assert isinstance(members, StackedMembers)
    for slot in range(20):
        members.load(slot, own.flat(), {})
    obs = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    expected = np.exp(torch.log_softmax(torch.from_numpy(own.outputs_of(obs)), -1).numpy()).max(1)
    for count in (3, 20):
        rows = RowGroups.of(np.arange(count)), obs[:count], None, None
        acted = members.act(*rows, "greedy", mf.RowRandom(*np.ones((2, count), np.uint64)))
        np.testing.assert_array_equal(acted.action, own.outputs_of(obs[:count]).argmax(1))
        # With equal random numbers, a member's sample is its own actor's.
        sampled = members.act(*rows, "sampled", mf.RowRandom(*np.ones((2, count), np.uint64)))
        alone = own.act(obs[:count], None, None, "sampled", mf.RowRandom(*np.ones((2, count), np.uint64)))
        np.testing.assert_allclose(sampled.behavior_logp, alone.behavior_logp, rtol=1e-4, atol=1e-5)
    assert (expected > 0.25).all()
