"""The compiled calls that begin, reset and step many environments of a functional environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.env.functional.checks import actions_like
from marlflow.env.functional_protocol import ByGroup, FunctionalEnv, FunctionalStep


class Carry(NamedTuple):
    """The running episodes, by environment: the complete state of each, and the observations of its agents."""

    state: Any
    key: Any
    env_steps: Any
    observations: ByGroup
    masks: ByGroup
    decides: ByGroup


class FunctionalOutcome(NamedTuple):
    """The results of a step, by group [B, A]; `infos` by name."""

    rewards: ByGroup
    terminated: ByGroup
    truncated: ByGroup
    infos: Mapping[str, ByGroup]


class CompiledCall:
    """`function` of arrays, compiled at the first call with arrays of a length; `compile_s`: seconds of these calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.jitted = jax.jit(function)
        self.compile_s = 0.0
        self._compiled: set[tuple[int, ...]] = set()

    def __call__(self, *arguments: Any) -> Any:
        lengths = tuple(len(jax.tree_util.tree_leaves(argument)[0]) for argument in arguments)
        if lengths in self._compiled:
            return self.jitted(*arguments)
        began_s = perf_counter()
        results = jax.block_until_ready(self.jitted(*arguments))
        self.compile_s += perf_counter() - began_s
        self._compiled.add(lengths)
        return results


class FunctionalCalls:
    """`env` mapped over environments and compiled; arrays of agents are by group, [B, A, ...].

    An episode's randomness is its seed's, in any batch: `PRNGKey(seed)` is split into the key of its reset and its own
    key, into which step t folds t. `begin_one` and `step_one` are of one environment and pure, for larger programs.
    `max_env_steps`: env steps after which all agents that still live are truncated; None: no limit.
    """

    def __init__(self, env: FunctionalEnv, max_env_steps: int | None) -> None:
        self.env, self.max_env_steps = env, max_env_steps
        # By wrappers: the calls of this environment inside them, which are shared and compiled once, too.
        self.wrapped: dict[bytes, FunctionalCalls] = {}
        self.groups = {name: list(agents) for name, agents in env.groups.items()}
        declared = getattr(env, "possible_agents", None)
        self.agents = (
            list(declared) if declared is not None else [agent for group in self.groups.values() for agent in group]
        )
        self._global_state = getattr(env, "global_state", None)
        self._dtypes = {
            name: jax.dtypes.canonicalize_dtype(env.observation_space(agents[0]).dtype)
            for name, agents in self.groups.items()
        }
        seed = jax.ShapeDtypeStruct((), np.uint32)
        self._state_like = jax.eval_shape(lambda seed: env.reset(jax.random.PRNGKey(seed))[0], seed)
        self._template = template = jax.eval_shape(self.begin_one, seed)
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(template)
        self._names = [jax.tree_util.keystr(path) for path, _ in leaves]
        self.state_space = self._state_space(template)
        self.begin = CompiledCall(jax.vmap(self.begin_one))
        self.reset = CompiledCall(self._reset)
        self.step = CompiledCall(jax.vmap(self.step_one))
        self.state = CompiledCall(jax.vmap(self.state_of_one))

    @cached_property
    def info_keys(self) -> tuple[str, ...]:
        """The names in the infos of every step."""
        return tuple(jax.eval_shape(self.step_one, self._template, actions_like(self.env))[1].infos)

    @property
    def compile_s(self) -> float:
        """Seconds of the calls that compiled."""
        return sum(call.compile_s for call in (self.begin, self.reset, self.step, self.state))

    def named(self, carry: Carry) -> dict[str, Any]:
        """Return the arrays [B, ...] of `carry` by name."""
        return dict(zip(self._names, jax.tree_util.tree_leaves(carry), strict=True))

    def from_named(self, columns: Mapping[str, Array]) -> Carry:
        """Return the carry of these arrays."""
        leaves = [jnp.asarray(columns[name]) for name in self._names]
        carry: Carry = jax.tree_util.tree_unflatten(self._structure, leaves)
        return carry

    def begin_one(self, seed: Any) -> Carry:
        """Start the episode of `seed`, uint32."""
        start, key = jax.random.split(jax.random.PRNGKey(seed))
        state, step = self.env.reset(start)
        return self._carry(state, key, jnp.zeros((), jnp.int32), step)

    def step_one(self, carry: Carry, actions: ByGroup) -> tuple[Carry, FunctionalOutcome]:
        """Step one environment by `actions` [A, ...]."""
        key = jax.random.fold_in(carry.key, carry.env_steps)
        state, step = self.env.step(key, carry.state, actions)
        env_steps = carry.env_steps + 1
        terminated, truncated = self._by_agent(step.terminated, bool), self._by_agent(step.truncated, bool)
        if self.max_env_steps is not None:
            truncated = {name: ends | (env_steps >= self.max_env_steps) for name, ends in truncated.items()}
        truncated = {name: ends & ~terminated[name] for name, ends in truncated.items()}
        infos = {name: self._by_agent(numbers, jnp.float32) for name, numbers in step.infos.items()}
        outcome = FunctionalOutcome(self._by_agent(step.rewards, jnp.float32), terminated, truncated, infos)
        return self._carry(state, carry.key, env_steps, step), outcome

    def _reset(self, carry: Carry, indices: Any, seeds: Any) -> Carry:
        """Begin episodes in `indices`; indices from B on are dropped."""
        new = jax.vmap(self.begin_one)(seeds)
        merged: Carry = jax.tree_util.tree_map(
            lambda rows, starts: rows.at[indices].set(starts, mode="drop"), carry, new
        )
        return merged

    def _carry(self, state: Any, key: Any, env_steps: Any, step: FunctionalStep) -> Carry:
        seen = {name: jnp.asarray(step.observations[name], self._dtypes[name]) for name in self.groups}
        masks = {name: jnp.asarray(step.action_masks[name]) != 0 for name in self.groups if name in step.action_masks}
        decides = self._by_agent(step.decides, bool) if step.decides else {}
        return Carry(self._strong(state), key, env_steps, seen, masks, decides)

    def _by_agent(self, values: ByGroup, dtype: Any) -> dict[str, Any]:
        """Return [A] for each group; zeros for groups that `values` leaves out."""
        return {
            name: jnp.broadcast_to(jnp.asarray(values.get(name, 0), dtype), (len(agents),))
            for name, agents in self.groups.items()
        }

    def _strong(self, state: Any) -> Any:
        """Return `state` with the types that it has after a reset, so that nothing is compiled twice."""
        return jax.tree_util.tree_map(lambda leaf, like: jnp.asarray(leaf, like.dtype), state, self._state_like)

    def state_of_one(self, carry: Carry) -> Any:
        """Return the global state of one environment."""
        if self._global_state is not None:
            return jnp.asarray(self._global_state(carry.state), jnp.float32)
        # JAX sorts the keys of a dict.
        rows = [carry.observations[name].reshape(-1) for name in self.groups]
        return jnp.concatenate(rows).astype(jnp.float32)

    def _state_space(self, template: Carry) -> spaces.Box:
        declared = getattr(self.env, "state_space", None)
        if self._global_state is not None and declared is not None:
            return declared  # type: ignore[no-any-return]
        return spaces.Box(-np.inf, np.inf, jax.eval_shape(self.state_of_one, template).shape, np.float32)
