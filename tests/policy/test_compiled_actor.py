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
