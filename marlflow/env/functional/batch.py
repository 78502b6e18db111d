"""Many environments of a functional environment as a `BatchedEnv`: a step of all of them is one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax.custom_batching import custom_vmap

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.env.batched.protocol import BatchedStep, as_numpy
from marlflow.env.functional.calls import Carry, FunctionalCalls
from marlflow.env.functional.checks import checked
from marlflow.env.functional.wrapping import Limited, compared, functional_wrapped
from marlflow.env.functional_protocol import FunctionalEnv

ROWS_PER_RESET = 8
"""Resets of at most this many environments share a program; the next program takes this many times more."""
_PICTURE = "rgb_array"


class FunctionalBatch:
    """`num_envs` environments of `calls`. It never resets itself: final observations belong to the ended episode."""

    is_functional = True

    def __init__(self, num_envs: int, name: str, calls: FunctionalCalls, render_mode: str | None = None) -> None:
        self.num_envs, self.render_mode, self.calls = num_envs, render_mode, calls
        modes = [_PICTURE] if hasattr(calls.env, "render") else []
        self.metadata = {"name": name, "render_modes": modes, **(getattr(calls.env, "metadata", None) or {})}
        # A wrapper may add pictures; who draws asks what the wrapped environment has.
        if render_mode not in (None, _PICTURE, *modes):
            problem = f"{name} has no render mode {render_mode!r}; it has {', '.join(modes) or 'none'}"
            raise ConfigInvalid([problem])
        self.possible_agents, self.groups, self.turn_based = calls.agents, calls.groups, calls.env.turn_based
        self.state_space = calls.state_space
        self._dtypes = {name: self.observation_space(agents[0]).dtype for name, agents in self.groups.items()}
        self._begun: Carry | None = None

    def with_wrappers(self, wrappers: Sequence[Any]) -> FunctionalBatch:
        """Return the same number of environments inside `wrappers`, the first one innermost; raises ConfigInvalid."""
        calls, key, name = self.calls, compared(wrappers), str(self.metadata["name"])
        found = None if key is None else calls.wrapped.get(key)
        if found is None:
            wrapped = functional_wrapped(Limited(calls.env, calls.max_env_steps), wrappers, name)
            found = FunctionalCalls(checked(wrapped, name), calls.max_env_steps)
            if key is not None:
                calls.wrapped[key] = found
        return FunctionalBatch(self.num_envs, name, found, self.render_mode)

    @property
    def info_keys(self) -> tuple[str, ...]:
        """The names in the infos of every step."""
        return self.calls.info_keys

    @property
    def compile_s(self) -> float:
        """Seconds of the calls that compiled; batches of the same environment share what they compiled."""
        return self.calls.compile_s

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.calls.env.observation_space(agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.calls.env.action_space(agent)

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        if self._begun is None and len(envs) == self.num_envs:
            # If compiled rollouts do all later resets, this saves compiling one program.
            self._begun = self.calls.begin(seeds.astype(np.uint32))
            return self.look()
        # Padded to few sizes, since each is compiled; rows beyond the last are dropped.
        rows = next((size for size in _sizes(self.num_envs) if size >= len(envs)), self.num_envs)
        padding = rows - len(envs)
        indices = np.concatenate([envs, np.full(padding, self.num_envs)]).astype(np.int32)
        starts = np.concatenate([seeds, np.zeros(padding, np.int64)]).astype(np.uint32)
        self._begun = self.calls.reset(self.carry, indices, starts)
        return self.look()

    @property
    def carry(self) -> Carry:
        """The episodes that run; before the first reset, any."""
        if self._begun is None:
            self._begun = self.calls.begin(np.zeros(self.num_envs, np.uint32))
        return self._begun

    def continue_with(self, carry: Carry) -> None:
        """Replace the episodes that run."""
        self._begun = carry

    def look(self) -> BatchedStep:
        """Return what agents see now, as a reset of all environments does."""
        carry = self.carry
        # JAX has no types of 64 bits, and spaces may.
        seen = {
            name: array.astype(self._dtypes[name], copy=False) for name, array in _numpy(carry.observations).items()
        }
        return BatchedStep(seen, decides=_numpy(carry.decides), action_masks=_numpy(carry.masks))

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        self._begun, outcome = self.calls.step(self.carry, dict(actions))
        step = self.look()
        step.rewards, step.terminated = _numpy(outcome.rewards), _numpy(outcome.terminated)
        step.truncated = _numpy(outcome.truncated)
        step.infos = {name: _numpy(numbers) for name, numbers in outcome.infos.items()}
        return step

    def state(self) -> Array:
        """Return the global states, float32 [B, *shape]."""
        return as_numpy(self.calls.state(self.carry))

    def get_state(self, envs: Array) -> dict[str, Array]:
        return {name: as_numpy(leaf)[envs] for name, leaf in self.calls.named(self.carry).items()}

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        columns = {name: as_numpy(leaf).copy() for name, leaf in self.calls.named(self.carry).items()}
        for name, column in columns.items():
            saved = state.get(name)
            if saved is None or saved.shape[1:] != column.shape[1:]:
                raise ValueError(f"the saved state has another {name}: it is of another environment")
            column[envs] = saved
        self._begun = self.calls.from_named(columns)
        return self.look()

    def render(self) -> Array | None:
        """Return a picture of environment 0, uint8 [height, width, 3]; None without a render mode."""
        if self.render_mode is None:
            return None
        state = jax.tree_util.tree_map(lambda leaf: leaf[0], self.carry.state)
        # A copy, because some viewers reuse the array.
        picture: Array = np.array(self.calls.env.render(state))  # type: ignore[attr-defined]
        return picture

    def close(self) -> None:
        """Do nothing."""


def _sizes(num_envs: int) -> list[int]:
    """Return the numbers of rows that resets are compiled for."""
    sizes, size = [], ROWS_PER_RESET
    while size < num_envs:
        sizes.append(size)
        size *= ROWS_PER_RESET
    return [*sizes, num_envs]


def _numpy(by_group: Mapping[str, Any]) -> dict[str, Array]:
    return {name: as_numpy(array) for name, array in by_group.items()}


# One for all environments of the same kind in a process, including evaluation environments: compiling takes seconds.
_COMPILED: dict[tuple[Any, ...], FunctionalCalls] = {}


def batch_of(
    num_envs: int,
    name: str,
    key: tuple[Any, ...],
    arguments: Mapping[str, Any],
    make: Callable[[], FunctionalEnv],
    max_env_steps: int | None,
    render_mode: str | None,
) -> FunctionalBatch:
    """Return `num_envs` environments that `make` makes, truncated at `max_env_steps`; raises ConfigInvalid.

    `name` is for messages. Calls are shared within the process by all environments of the same `key`, `arguments` and
    limit; arguments that cannot be pickled, and so compared, are not shared.
    """
    if max_env_steps is not None and (type(max_env_steps) is not int or max_env_steps < 1):
        problem = f"max_env_steps must be a whole number from 1, or null for no limit, not {max_env_steps!r}"
        raise ConfigInvalid([problem])
    # Texts would not tell large arrays apart.
    pickled = compared([arguments])
    whole = None if pickled is None else (*key, pickled, max_env_steps)
    calls = None if whole is None else _COMPILED.get(whole)
    if calls is None:
        calls = FunctionalCalls(checked(make(), name), max_env_steps)
        if whole is not None:
            _COMPILED[whole] = calls
    return FunctionalBatch(num_envs, name, calls, render_mode)


def rarely(where: Any, function: Callable[..., Any], otherwise: Any, *arguments: Any) -> Any:
    """Return `function(*arguments)` if `where` (a bool array of one environment), else `otherwise`, a like pytree.

    Mapped over environments, `lax.cond` computes both for all of them; this computes `function` for all of them if it
    is needed in any, else for none. `function` may use no arrays but its arguments.
    """

    @custom_vmap
    def chosen(where: Any, otherwise: Any, arguments: Any) -> Any:
        return jax.lax.cond(where, lambda: function(*arguments), lambda: otherwise)

    @chosen.def_vmap
    def _batched(size: int, is_batched: Any, where: Any, otherwise: Any, arguments: Any) -> Any:
        where, otherwise, arguments = jax.tree_util.tree_map(
            lambda leaf, batched: leaf if batched else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))),
            (where, otherwise, arguments),
            tuple(is_batched),
        )

        def needed() -> Any:
            found = jax.vmap(function)(*arguments)
            return jax.tree_util.tree_map(
                lambda new, old: jnp.where(where.reshape(size, *[1] * (new.ndim - 1)), new, old), found, otherwise
            )

        result = jax.lax.cond(where.any(), needed, lambda: otherwise)
        return result, jax.tree_util.tree_map(lambda _: True, result)

    return chosen(where, otherwise, arguments)
