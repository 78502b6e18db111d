"""An actor as a pure function in JAX: its network traced from torch, and its choice of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from marlflow.base.arrays import Array
from marlflow.base.errors import NotCompiled
from marlflow.base.observations import row_dtype
from marlflow.compiled.counter_random import Bits64, CounterRandom
from marlflow.compiled.rows import NO_PADDING
from marlflow.compiled.tracing import Traced, traced, value_of
from marlflow.policy.actor import Actor, RecurrentActor
from marlflow.policy.compiled_choice import Chosen, compiled_choice
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.tensors import in_flat_order
from marlflow.policy.unwrapped import network_of


class Given(NamedTuple):
    """The inputs of an actor beside observations: its parameters, matrices transposed, and its settings by name."""

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


_ROWS_OF_MEMBER = 4
"""Rows of each member that are computed at once, at least."""


class StackedMember(NamedTuple):
    """A member of a stack: all its parameters, perhaps with others after them, and its scheduled values."""

    flat: Array
    scheduled: Mapping[str, float]


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
        self._try(actor.memory_shape if isinstance(actor, RecurrentActor) else None)

    def _try(self, memory_shape: tuple[int, ...] | None) -> None:
        """Trace the actor with shapes alone; raises NotCompiled."""
        like = self._observation
        obs = jax.ShapeDtypeStruct((2, *(like.shape or ())), jax.dtypes.canonicalize_dtype(like.dtype))
        memory = None if memory_shape is None else jax.ShapeDtypeStruct((2, *memory_shape), np.float32)

        def act(obs: Any, memory: Any, zeros: Any) -> Any:
            return self.act(self.given(), obs, None, memory, CounterRandom(Bits64(zeros, zeros), zeros, zeros))

        try:
            jax.eval_shape(act, obs, memory, jax.ShapeDtypeStruct((2,), np.uint32))
        except (NotCompiled, KeyboardInterrupt):
            raise
        except Exception as error:
            raise NotCompiled(f"{type(error).__name__} while its network was traced: {error}") from error

    def given(self) -> Given:
        """Return the parameters and settings of now."""
        settings = self.settings
        arrays = [parameter.detach().cpu().numpy() for parameter in self._parameters]
        # XLA multiplies faster by the transpose of torch's matrices. Copies, because the actor's parameters may change.
        parameters = tuple(array.T.copy() if array.ndim == 2 else array.copy() for array in arrays)
        return Given(parameters, {name: np.float32(value) for name, value in settings.items()})

    @property
    def settings(self) -> Mapping[str, float]:
        """The settings of now, by name."""
        return compiled_choice(self._actor).settings

    def stacked(self, members: Sequence[StackedMember | None]) -> Given:
        """Return the parameters and settings of several members with this network, [E, ...] each; None is any."""
        defaults, shapes = self.settings, [parameter.shape for parameter in self._parameters]
        sizes = np.cumsum([0, *(parameter.numel() for parameter in self._parameters)])
        flats = np.zeros((len(members), int(sizes[-1])), np.float32)
        for number, member in enumerate(members):
            if member is not None:
                flats[number] = member.flat[: flats.shape[1]]
        parts = [part.reshape(-1, *of) for part, of in zip(np.split(flats, sizes[1:-1], 1), shapes, strict=True)]
        scheduled = [{} if member is None else member.scheduled for member in members]
        return Given(
            tuple(part.swapaxes(1, 2).copy() if part.ndim == 3 else part for part in parts),
            {name: np.array([of.get(name, value) for of in scheduled], np.float32) for name, value in defaults.items()},
        )

    def act_as(
        self, given: Given, members: Any, active: Any, obs: Any, action_mask: Any, memory: Any, random: CounterRandom
    ) -> tuple[Chosen, Any]:
        """Act by the `members` [N] of `given`, which is `stacked`; rows that are not `active` get any action."""
        outputs, after = None, memory
        if self._network is not None:
            rows = encoded(self._observation, obs), memory
            outputs, after = self._outputs_of_members(given.parameters, members, active, *rows)
        settings = {name: values[members] for name, values in given.settings.items()}
        return self._choose(outputs, action_mask, random, settings), after

    def _outputs_of_members(self, parameters: Any, members: Any, active: Any, obs: Any, memory: Any) -> Any:
        """Compute rows in turns of a few for each member, so that a turn is one product of matrices for all."""
        rows, count = len(obs), parameters[0].shape[0]
        turn = max(_ROWS_OF_MEMBER, 1 << (rows // count).bit_length())
        of = jnp.where(active, members, count)
        order = jnp.argsort(of)
        first = jnp.searchsorted(of[order], jnp.arange(count + 1))
        # Each row's place among those of its member.
        place = jnp.zeros(rows, jnp.int32).at[order].set(jnp.arange(rows, dtype=jnp.int32) - first[of[order]])
        compute = jax.vmap(self._outputs, (0, 0, None if memory is None else 0))

        def some(now: Any) -> Any:
            start, results = now
            here = active & (place >= start) & (place < start + turn)
            at = jnp.where(here, of * turn + place - start, count * turn)
            chosen = jnp.full(count * turn, rows).at[at].set(jnp.arange(rows), mode="drop")
            given = [
                None if one is None else one.at[chosen].get(mode="clip").reshape(count, turn, *one.shape[1:])
                for one in (obs, memory)
            ]
            found = compute(parameters, *given)
            results = jax.tree_util.tree_map(
                lambda old, new: old.at[chosen].set(new.reshape(count * turn, *old.shape[1:]), mode="drop"),
                results,
                found,
            )
            return start + turn, results

        like = jax.eval_shape(lambda: self._outputs([one[0] for one in parameters], obs, memory))
        empty = jax.tree_util.tree_map(lambda one: jnp.zeros(one.shape, one.dtype), like)
        last = jnp.max(jnp.where(active, place, -1))
        return jax.lax.while_loop(lambda now: now[0] <= last, some, (jnp.int32(0), empty))[1]

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
