"""Resets and steps of many environments of JaxMARL, each one compiled call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marlflow.base.batch import Array
from marlflow.env.batched.agent_groups import groups_of
from marlflow.env.batched.jax_spaces import SpacesOf

ROWS_PER_RESET = 8
"""Resets of at most so many environments share a compiled call; the next one takes as many times more."""

_NO_LIMIT = 2**30


class Carry(NamedTuple):
    """The running episodes, by environment: all that determines how they continue, and the current observations."""

    state: Any
    key: Any
    env_steps: Any
    observations: dict[str, Any]
    masks: dict[str, Any]


class JaxCalls:
    """The compiled calls of `env`; arrays of agents are by group, [B, A, ...].

    An episode's randomness is its seed's: the key of its step t is folded from its own key and t.
    """

    def __init__(
        self,
        env: Any,
        spaces: Mapping[str, SpacesOf],
        max_env_steps: int | None,
        done_means: str,
    ) -> None:
        self.spaces, self.groups = spaces, groups_of(spaces)
        self._env, self._max_env_steps = env, max_env_steps
        self._dtypes = {
            name: jax.dtypes.canonicalize_dtype(spaces[agents[0]][0].dtype) for name, agents in self.groups.items()
        }
        self._done_means, self._unlimited = done_means, without_limit(env)
        one = jax.ShapeDtypeStruct((), np.uint32)
        _, states = jax.eval_shape(lambda seed: env.reset(jax.random.PRNGKey(seed)), one)
        self._state_like = states
        self._masks_of, self._masked = _mask_method(env, states, self.groups, spaces)
        self._world_state = _world_state_method(env, states)
        self.begin = jax.jit(jax.vmap(self._begin))
        self.reset = jax.jit(self._reset)
        self.step = jax.jit(self._step)
        self.state = jax.jit(self._state)
        template = jax.eval_shape(self._begin, one)
        self.state_size: int = jax.eval_shape(self._state, _with_rows(template)).shape[1]
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(template)
        self._names = [jax.tree_util.keystr(path) for path, _ in leaves]

    def named(self, carry: Carry) -> dict[str, Any]:
        """Return the arrays [B, ...] of `carry` by name."""
        return dict(zip(self._names, jax.tree_util.tree_leaves(carry), strict=True))

    def from_named(self, columns: Mapping[str, Array]) -> Carry:
        """Return the carry of these arrays."""
        leaves = [jnp.asarray(columns[name]) for name in self._names]
        carry: Carry = jax.tree_util.tree_unflatten(self._structure, leaves)
        return carry

    def _begin(self, seed: Any) -> Carry:
        """Start one episode."""
        start, key = jax.random.split(jax.random.PRNGKey(seed))
        seen, state = self._env.reset(start)
        state = self._strong(state)
        return Carry(state, key, jnp.zeros((), jnp.int32), self._stacked(seen, self._dtypes), self._masks(state))

    def _reset(self, carry: Carry, indices: Any, seeds: Any) -> Carry:
        new = jax.vmap(self._begin)(seeds)
        merged: Carry = jax.tree_util.tree_map(
            lambda rows, starts: rows.at[indices].set(starts, mode="drop"), carry, new
        )
        return merged

    def _step(self, carry: Carry, actions: Mapping[str, Any]) -> tuple[Carry, Any, Any, Any]:
        """Step all environments; return also rewards, terminated and truncated by group."""
        by_agent = {
            agent: actions[name][:, at] for name, agents in self.groups.items() for at, agent in enumerate(agents)
        }
        keys = jax.vmap(jax.random.fold_in)(carry.key, carry.env_steps)
        seen, states, rewards, dones, _ = jax.vmap(self._env.step_env)(keys, carry.state, by_agent)
        states, env_steps = jax.vmap(self._strong)(states), carry.env_steps + 1
        done = self._ended(dones)
        terminated = self._terminated(done, keys, carry, by_agent, env_steps)
        late = jnp.zeros_like(env_steps, bool) if self._max_env_steps is None else env_steps >= self._max_env_steps
        truncated = {name: (done[name] | late[:, None]) & ~terminated[name] for name in done}
        masks = jax.vmap(self._masks)(states)
        observations = jax.vmap(lambda one: self._stacked(one, self._dtypes))(seen)
        going_on = Carry(states, carry.key, env_steps, observations, masks)
        received = dict.fromkeys(self.groups, np.dtype(np.float32))
        return going_on, jax.vmap(lambda one: self._stacked(one, received))(rewards), terminated, truncated

    def _terminated(
        self, done: dict[str, Any], keys: Any, carry: Carry, actions: Any, env_steps: Any
    ) -> dict[str, Any]:
        if self._done_means != "auto":
            return {name: ends & (self._done_means == "terminated") for name, ends in done.items()}
        if self._unlimited is None:
            return done
        env, limit = self._unlimited

        def without_limit() -> dict[str, Any]:
            return self._ended(jax.vmap(env.step_env)(keys, carry.state, actions)[3])

        # The limit is no cause earlier.
        at_limit = jnp.any(jnp.stack([ends.any(axis=1) for ends in done.values()]) & (env_steps >= limit))
        terminated: dict[str, Any] = jax.lax.cond(at_limit, without_limit, lambda: done)
        return terminated

    def _ended(self, dones: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: jnp.stack([jnp.asarray(dones[agent] | dones["__all__"], bool) for agent in agents], axis=1)
            for name, agents in self.groups.items()
        }

    def _strong(self, state: Any) -> Any:
        """Return `state` with the types that it has after a reset, so that nothing is compiled twice."""
        return jax.tree_util.tree_map(lambda leaf, like: jnp.asarray(leaf, like.dtype), state, self._state_like)

    def _stacked(self, of_agents: Mapping[str, Any], dtypes: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: jnp.stack([jnp.asarray(of_agents[agent], dtypes[name]) for agent in agents])
            for name, agents in self.groups.items()
        }

    def _masks(self, state: Any) -> dict[str, Any]:
        if not self._masked:
            return {}
        legal = self._masks_of(state)
        return {name: jnp.stack([legal[agent] != 0 for agent in self.groups[name]]) for name in self._masked}

    def _state(self, carry: Carry) -> Any:
        if self._world_state is not None:
            return jnp.asarray(jax.vmap(self._world_state)(carry.state), jnp.float32)
        rows = [seen.reshape(len(seen), -1) for seen in carry.observations.values()]
        return jnp.concatenate(rows, axis=1).astype(jnp.float32)


def without_limit(env: Any) -> tuple[Any, int] | None:
    """Return a copy of `env` that has no limit of env steps, and the limit; None if it has no `max_steps`."""
    attributes = vars(env)
    inner = without_limit(attributes["_env"]) if "_env" in attributes else None
    limit = attributes.get("max_steps", None if inner is None else inner[1])
    if limit is None:
        return None
    # Not by copy.copy, which asks environments that pass attributes on for one that they do not have yet.
    unlimited = object.__new__(type(env))
    vars(unlimited).update(attributes)
    if "max_steps" in attributes:
        unlimited.max_steps = _NO_LIMIT
    if inner is not None:
        unlimited._env = inner[0]
    return unlimited, int(limit)


def _mask_method(
    env: Any, states: Any, groups: Mapping[str, Sequence[str]], spaces: Mapping[str, SpacesOf]
) -> tuple[Any, list[str]]:
    """Return what gives legal actions, and the groups that have masks."""
    for method in ("get_avail_actions", "get_legal_moves"):
        try:
            legal = jax.eval_shape(getattr(env, method), states)
        # The base class raises where there are none.
        except (AttributeError, NotImplementedError):
            continue
        return getattr(env, method), [
            name
            for name, agents in groups.items()
            if legal[agents[0]].shape == (getattr(spaces[agents[0]][1], "n", None),)
        ]
    return None, []


def _world_state_method(env: Any, states: Any) -> Any:
    method = getattr(env, "get_world_state", None)
    # Some give a state for each agent.
    return method if method is not None and getattr(jax.eval_shape(method, states), "ndim", 0) == 1 else None


def _with_rows(template: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), template)
