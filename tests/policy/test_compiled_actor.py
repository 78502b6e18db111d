"""Choices of actions in compiled rollouts, of many actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from marlflow.base.errors import NotCompiled
from marlflow.compiled import xla

if True:  # JAX reads its settings when it is imported
    assert not xla.problem()
    import jax
    import jax.numpy as jnp

    from marlflow.policy.box import BoxCoordinates, DeterministicActor, GaussianActor, SquashedGaussianActor
    from marlflow.policy.categorical import CategoricalActor
    from marlflow.policy.compiled_actor import CompiledActor, StackedMember, _running_sums, _sample
    from marlflow.policy.q import QActor
    from marlflow.policy.tensors import in_flat_order


@pytest.mark.parametrize("actions", [1, 32, 33, 500])
def test_weights_are_added_up_in_the_order_of_numpy(actions: int) -> None:
    weights = np.random.default_rng(actions).random((7, actions), np.float32)
    np.testing.assert_array_equal(jax.jit(_running_sums)(weights), np.cumsum(weights, 1))


def test_the_program_does_not_grow_with_the_actions() -> None:
    few, many = (
        str(jax.make_jaxpr(_sample)(jnp.zeros((7, actions)), jnp.ones((7, actions), bool), jnp.zeros(7)))
        for actions in (100, 5000)
    )
    assert len(many.splitlines()) == len(few.splitlines())


class Scaled(nn.Module):
    """Four features; what is traced has no device of its own, and gets another scale."""

    def __init__(self, when_traced: float) -> None:
        super().__init__()
        self.when_traced = when_traced

    def forward(self, obs: Any) -> Tensor:
        x: Tensor = torch.as_tensor(obs)
        return torch.tanh(x) * (self.when_traced if x.device.type == "meta" else 1.0)


@pytest.mark.parametrize("space", [spaces.Box(-np.inf, np.inf, (4,)), spaces.Box(-3.4e38, 3.4e38, (4,))])
def test_an_actor_whose_outputs_differ_from_torchs_is_not_compiled(space: spaces.Box) -> None:
    def actor(when_traced: float) -> CategoricalActor:
        return CategoricalActor(Scaled(when_traced), 4, 3, torch.Generator().manual_seed(0))

    CompiledActor(actor(1.0), space)
    with pytest.raises(NotCompiled, match="XLA computes other outputs of its network than torch, by 0"):
        CompiledActor(actor(1.01), space)


class Doubled(QActor):
    """Acts by twice the weights that it is given, and explores half as much as it is told."""

    def load_flat(self, flat: Any) -> None:
        super().load_flat(2.0 * flat)

    def set_schedule(self, values: Any) -> None:
        super().set_schedule(values)
        self.epsilon = self.epsilon / 2


def test_members_are_what_an_actor_makes_of_their_weights_and_schedules() -> None:
    def actor() -> Doubled:
        return Doubled(nn.Identity(), nn.Linear(4, 3))

    live = actor()
    before = live.flat()
    compiled = CompiledActor(live, spaces.Box(-1.0, 1.0, (4,)))
    flats = [np.arange(15, dtype=np.float32), np.ones(17, np.float32)]  # of a league, another network's may follow
    members = [StackedMember(flats[0], {"epsilon": 0.4}), None, StackedMember(flats[1], {"epsilon": 0.2})]
    given = compiled.stacked(members)
    for number, member in enumerate(members):
        if member is None:
            continue
        own = actor()
        own.set_schedule(member.scheduled)
        own.load_flat(member.flat[:15])
        for stack, parameter in zip(given.parameters, in_flat_order(own), strict=True):
            np.testing.assert_array_equal(stack[number], parameter.detach().numpy().T)
        assert given.settings["epsilon"][number] == np.float32(own.epsilon)
    np.testing.assert_array_equal(live.flat(), before)


class Careful(QActor):
    """Never explores."""

    def _epsilon(self, generator: Any) -> float:
        return 0.0


class Rounded(BoxCoordinates):
    """Rounds actions."""

    def in_box(self, action: Any) -> Any:
        return np.round(super().in_box(action))


class OwnDensity(GaussianActor):
    """Has its own density."""

    def _log_prob(self, mean: Tensor, log_std: Tensor, flat: Tensor) -> Tensor:
        return 0.5 * super()._log_prob(mean, log_std, flat)


def test_an_actor_that_overrides_what_its_choice_calls_is_not_compiled() -> None:
    space, box, generator = spaces.Box(-1.0, 1.0, (4,)), spaces.Box(-1.0, 1.0, (2,)), torch.Generator().manual_seed(0)
    with pytest.raises(NotCompiled, match=r"Careful has its own _epsilon, called tick by tick"):
        CompiledActor(Careful(nn.Identity(), nn.Linear(4, 3)), space)
    with pytest.raises(NotCompiled, match="OwnDensity has its own _log_prob"):
        CompiledActor(OwnDensity(nn.Identity(), 4, box, generator), space)
    for kind in (SquashedGaussianActor, DeterministicActor):
        actor = kind(nn.Identity(), 4, box, generator)
        CompiledActor(actor, space)
        actor.box = Rounded(box)
        with pytest.raises(NotCompiled, match="Rounded has its own in_box"):
            CompiledActor(actor, space)


def test_a_network_is_compiled_as_it_acts() -> None:
    torso = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8))
    actor = CategoricalActor(torso, 8, 3, torch.Generator().manual_seed(0))
    assert actor.training
    compiled, obs = CompiledActor(actor, spaces.Box(-1.0, 1.0, (4,))), np.ones((2, 4), np.float32)
    outputs, _ = jax.jit(compiled._outputs)(compiled.given().parameters, obs, None)
    np.testing.assert_allclose(outputs, actor.outputs_of(obs), rtol=1e-5, atol=1e-6)


class Pushed(QActor):
    """Adds a scheduled number to the value of its last action."""

    def __init__(self) -> None:
        super().__init__(nn.Identity(), nn.Linear(4, 3))
        self.push = -1.0

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs) + self.push * torch.tensor([0.0, 0.0, 1.0])

    def set_schedule(self, values: Any) -> None:
        super().set_schedule(values)
        self.push = values.get("push", self.push)


def test_a_number_that_a_network_changes_itself_is_noticed() -> None:
    actor = Pushed()
    compiled = CompiledActor(actor, spaces.Box(-1.0, 1.0, (4,)))
    # What is set before the first call, as a run sets schedules, is no change.
    actor.set_schedule({"push": 0.0})
    compiled.given()
    flat = actor.flat()
    compiled.stacked([StackedMember(flat, {"push": 0.0, "epsilon": 0.2})])
    with pytest.raises(NotCompiled, match="Pushed changes its own push, which a program has as a constant"):
        compiled.stacked([StackedMember(flat, {"push": 1.0})])
    actor.set_schedule({"epsilon": 0.3})
    compiled.given()
    actor.set_schedule({"push": 0.5})
    with pytest.raises(NotCompiled, match="Pushed changes its own push"):
        compiled.given()
