"""Environments of JaxMARL, many at once: a step of all of them is one compiled call of jax.

JaxMARL: Rutherford et al., "JaxMARL: Multi-Agent RL Environments and Algorithms in JAX" (NeurIPS 2024,
arXiv:2311.10090). `pip install 'marlflow[jaxmarl]'`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from marlflow.base.batch import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.near import meant
from marlflow.env.batched.arrays import as_numpy
from marlflow.env.batched.jax_calls import ROWS_PER_RESET, Carry, JaxCalls
from marlflow.env.batched.jax_spaces import spaces_of
from marlflow.env.batched.jaxmarl_import import make, registered_envs
from marlflow.env.batched.protocol import BatchedStep

DoneMeans = Literal["auto", "terminated", "truncated"]
_MEANINGS = "auto", "terminated", "truncated"


class JaxmarlEnv:
    """`num_envs` environments of JaxMARL. Agents of one name, without its number, and spaces are a group.

    name: as in `jaxmarl.registered_envs`.
    parameters: arguments of the environment, such as `{"num_agents": 4}`.
    max_env_steps: env steps after which all agents are truncated; None: the environment's own limit alone.
    done_means: the meaning of JaxMARL's `done`, which does not tell ends apart. `auto`: truncated if the environment
        would continue without its `max_steps`, else terminated. `terminated` or `truncated`: always that.

    Never resets itself, unlike JaxMARL's `step`: final observations are those of the episode that ends. `state()` is
    JaxMARL's world state if there is one for all agents, else all agents' observations. Raises ConfigInvalid if an
    argument is wrong.
    """

    turn_based = False

    def __init__(
        self,
        num_envs: int,
        name: str = "MPE_simple_spread_v3",
        parameters: Mapping[str, Any] | None = None,
        max_env_steps: int | None = None,
        done_means: DoneMeans = "auto",
    ) -> None:
        _check(name, max_env_steps, done_means)
        self.num_envs, self.metadata = num_envs, {"name": f"jaxmarl_{name}"}
        self._calls = _compiled(name, parameters or {}, max_env_steps, done_means)
        self.possible_agents, self.groups = list(self._calls.spaces), self._calls.groups
        self._carry: Carry | None = None
        self.state_space = spaces.Box(-np.inf, np.inf, (self._calls.state_size,), np.float32)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._calls.spaces[agent][0]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._calls.spaces[agent][1]

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        # Padded to few sizes, since each is compiled; rows beyond the last are dropped.
        rows = next((size for size in _sizes(self.num_envs) if size >= len(envs)), self.num_envs)
        padding = rows - len(envs)
        indices = np.concatenate([envs, np.full(padding, self.num_envs)]).astype(np.int32)
        starts = np.concatenate([seeds, np.zeros(padding, np.int64)]).astype(np.uint32)
        self._carry = self._calls.reset(self._begun(), indices, starts)
        return self._look()

    def _begun(self) -> Carry:
        """Return the episodes that run; before the first reset, any."""
        if self._carry is None:
            self._carry = self._calls.begin(np.zeros(self.num_envs, np.uint32))
        return self._carry

    def _look(self) -> BatchedStep:
        carry = self._begun()
        return BatchedStep(_numpy(carry.observations), action_masks=_numpy(carry.masks))

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        self._carry, rewards, terminated, truncated = self._calls.step(self._begun(), dict(actions))
        carry = self._carry
        return BatchedStep(
            _numpy(carry.observations),
            _numpy(rewards),
            _numpy(terminated),
            _numpy(truncated),
            action_masks=_numpy(carry.masks),
        )

    def state(self) -> Array:
        """Return the world state of JaxMARL, or all agents' observations side by side, float32 [B, size]."""
        return as_numpy(self._calls.state(self._begun()))

    def get_state(self, envs: Array) -> dict[str, Array]:
        return {name: as_numpy(leaf)[envs] for name, leaf in self._calls.named(self._begun()).items()}

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        columns = {name: as_numpy(leaf).copy() for name, leaf in self._calls.named(self._begun()).items()}
        for name, column in columns.items():
            saved = state.get(name)
            if saved is None or saved.shape[1:] != column.shape[1:]:
                raise ValueError(f"the saved state has another {name}: it is of another environment of JaxMARL")
            column[envs] = saved
        self._carry = self._calls.from_named(columns)
        return self._look()

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


# One of each for all environments of a process, such as those of evaluations: compiling takes seconds.
_COMPILED: dict[tuple[Any, ...], JaxCalls] = {}


def _compiled(name: str, parameters: Mapping[str, Any], max_env_steps: int | None, done_means: str) -> JaxCalls:
    key = name, repr(dict(parameters)), max_env_steps, done_means
    if key not in _COMPILED:
        env = _make(name, parameters)
        _COMPILED[key] = JaxCalls(env, spaces_of(env, name), max_env_steps, done_means)
    return _COMPILED[key]


def _check(name: str, max_env_steps: int | None, done_means: str) -> None:
    known = list(registered_envs)
    if name not in known:
        problem = f"JaxMARL has no environment {name!r}{meant(name, known)}; it has {', '.join(known)}"
        raise ConfigInvalid([problem])
    if max_env_steps is not None and (type(max_env_steps) is not int or max_env_steps < 1):
        problem = f"max_env_steps must be a whole number from 1, or null for no limit, not {max_env_steps!r}"
        raise ConfigInvalid([problem])
    if done_means not in _MEANINGS:
        problem = f"done_means must be one of {', '.join(_MEANINGS)}, not {done_means!r}{meant(done_means, _MEANINGS)}"
        raise ConfigInvalid([problem])


def _make(name: str, parameters: Mapping[str, Any]) -> Any:
    try:
        return make(name, **parameters)
    # Environments of other packages (mabrax, jaxrobotarium) that are not installed.
    except ImportError as error:
        raise ConfigInvalid([f"{name} of JaxMARL cannot be imported: {error}"]) from error
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in parameters.items())
        problem = f"{name} of JaxMARL cannot be made with {given or 'its defaults'}: {type(error).__name__}: {error}"
        raise ConfigInvalid([f"{problem} (env.parameters)"]) from error
