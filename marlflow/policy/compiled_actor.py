"""An actor as a pure function in JAX: its network traced from torch, and its choice of actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from marlflow.base.errors import NotCompiled
from marlflow.base.observations import row_dtype
from marlflow.compiled.counter_random import CounterRandom
from marlflow.compiled.rows import NO_PADDING
from marlflow.compiled.tracing import Traced, traced, value_of
from marlflow.policy.actor import Actor, RecurrentActor
from marlflow.policy.compiled_choice import Chosen, compiled_choice
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.tensors import in_flat_order
from marlflow.policy.unwrapped import network_of


class Given(NamedTuple):
    """What an actor reads beside observations: its parameters, matrices transposed, and its settings by name."""

    parameters: tuple[Any, ...]
    settings: Mapping[str, Any]


def encoded(space: spaces.Space[Any], observations: Any) -> Any:
    """Return observations [N, ...] as rows of the `obs` column (see `base.observations`)."""
    if isinstance(space, spaces.Box):
        return observations.astype(jax.dtypes.canonicalize_dtype(row_dtype(space)))
    flat = observations.reshape(len(observations), -1)
    if isinstance(space, spaces.MultiBinary):
        return flat.astype(jnp.float32)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete), "spaces were checked"
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    first = np.ravel(space.start)
    parts = [jax.nn.one_hot(flat[:, at] - first[at], int(size)) for at, size in enumerate(sizes)]
    return jnp.concatenate(parts, 1)


class CompiledActor:
    """`actor`, which sees `observation`, as a function of arrays; raises NotCompiled if it has no counterpart."""

    def __init__(self, actor: Actor, observation: spaces.Space[Any]) -> None:
        self._actor, self._observation = actor, observation
        self._choose = compiled_choice(actor).choose
        network = network_of(actor)
        if network is not None and not isinstance(network, NetworkActor):
            raise NotCompiled(f"{type(network).__name__} is no NetworkActor")
        self._network = network
        if network is not None and network.device is not None:
            raise NotCompiled("its network is on another device")
        self._parameters: list[nn.Parameter] = [] if network is None else in_flat_order(network)
        self.memory_shape = actor.memory_shape if isinstance(actor, RecurrentActor) else None

    def given(self) -> Given:
        """Return the parameters and settings of now."""
        settings = compiled_choice(self._actor).settings
        arrays = [parameter.detach().cpu().numpy() for parameter in self._parameters]
        # XLA multiplies faster by the transpose of torch's matrices; copies, since training may go on meanwhile.
        parameters = tuple(array.T.copy() if array.ndim == 2 else array.copy() for array in arrays)
        return Given(parameters, {name: np.float32(value) for name, value in settings.items()})

    def act(self, given: Given, obs: Any, action_mask: Any, memory: Any, random: CounterRandom) -> tuple[Chosen, Any]:
        """Return what is chosen for N observations, and their next memory, as `Actor.act` in training."""
        outputs, after = None, memory
        obs = encoded(self._observation, obs)
        if self._network is not None:
            outputs, after = self._outputs(given.parameters, obs, memory)
        return self._choose(outputs, action_mask, random, given.settings), after

    def _outputs(self, parameters: Any, obs: Any, memory: Any) -> tuple[Any, Any]:
        network = self._network
        assert network is not None
        pairs = zip(self._parameters, parameters, strict=True)
        known = {id(of): value.T if value.ndim == 2 else value for of, value in pairs}
        before = None if memory is None else Traced(memory)
        # Networks have shorter ways without gradients, through numpy.
        with torch.enable_grad():
            outputs, after = traced(known, NO_PADDING, lambda: network.outputs(Traced(obs), before))
        return value_of(outputs), memory if after is None else value_of(after)
