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
    from marlflow.policy.compiled_actor import CompiledActor, _running_sums, _sample


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
