"""Choices of actions in compiled rollouts, of many actions."""

from __future__ import annotations

import numpy as np
import pytest

from marlflow.compiled import xla

if True:  # JAX reads its settings when it is imported
    assert not xla.problem()
    import jax
    import jax.numpy as jnp

    from marlflow.policy.compiled_actor import _running_sums, _sample


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
