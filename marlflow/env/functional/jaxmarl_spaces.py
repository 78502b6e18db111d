"""The spaces of JaxMARL's environments as those of gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from marlflow.base.errors import ConfigInvalid

SpacesOf: TypeAlias = tuple[spaces.Space[Any], spaces.Space[Any]]
"""An agent's spaces of observations and of actions."""

_EACH = "observations"


def agent_names(env: Any) -> dict[str, Any]:
    """Return JaxMARL's own name of each agent; what JaxMARL only numbers is called agent_0, agent_1, ..."""
    return {f"agent_{own}" if str(own).isdecimal() else str(own): own for own in env.agents}


def of_agent(of_all: Any, env: Any, own: Any) -> Any:
    """Return what `of_all` has for the agent that JaxMARL calls `own`; a Dict of its own as one vector."""
    place = env.agents.index(own)
    if isinstance(of_all, Mapping):
        # In storm, one of the entries has an array for each agent, and the others are seen by all.
        one = (
            of_all[own]
            if own in of_all
            else {key: of_all[key][place] if key == _EACH else of_all[key] for key in of_all}
        )
    else:
        one = of_all[place]
    if not isinstance(one, Mapping):
        return one
    return jnp.concatenate([jnp.ravel(one[key]).astype(jnp.float32) for key in sorted(one)])


def spaces_of(env: Any, name: str) -> dict[str, SpacesOf]:
    """Return the spaces of each agent of `env`, in the order of its agents; `name` is for messages.

    Observations have the shapes that a reset gives, since some environments declare others. Raises ConfigInvalid.
    """
    names = agent_names(env)

    def seen(key: Any) -> dict[str, Any]:
        of_all = env.reset(key)[0]
        return {agent: of_agent(of_all, env, own) for agent, own in names.items()}

    shapes = jax.eval_shape(seen, jax.random.PRNGKey(0))
    return {
        agent: (
            _observation_space(env.observation_space(own), shapes[agent], f"observations of {agent} in {name}"),
            _converted(env.action_space(own), None, f"actions of {agent} in {name}"),
        )
        for agent, own in names.items()
    }


def _observation_space(space: Any, like: Any, what: str) -> spaces.Space[Any]:
    if isinstance(space, Mapping):
        return spaces.Box(-np.inf, np.inf, like.shape, np.float32)
    return _converted(space, like.shape, what)


def _converted(space: Any, shape: tuple[int, ...] | None, what: str) -> spaces.Space[Any]:
    kind = type(space).__name__
    if kind == "Discrete" and shape in (None, ()):
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(space.num_categories))
    if kind == "Box":
        shape = tuple(np.atleast_1d(space.shape)) if shape is None else shape
        dtype = np.dtype(space.dtype)
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        low, high = (_within(bound, limits, dtype) for bound in (space.low, space.high))
        return spaces.Box(np.broadcast_to(low, shape), np.broadcast_to(high, shape), shape, dtype.type)
    problem = f"{what} of JaxMARL are a {kind} {space!r:.80}, and marlflow takes its Box, Discrete and MultiDiscrete"
    raise ConfigInvalid([f"{problem}; choose another env.name"])


def _within(bound: Any, limits: Any, dtype: np.dtype[Any]) -> Any:
    values = np.asarray(bound, np.float64)
    return values.astype(dtype) if dtype.kind == "f" else np.clip(values, limits.min, limits.max).astype(dtype)
