"""The spaces of JaxMARL's environments as those of gymnasium."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import numpy as np
from gymnasium import spaces

from marlflow.base.errors import ConfigInvalid

SpacesOf: TypeAlias = tuple[spaces.Space[Any], spaces.Space[Any]]
"""An agent's spaces of observations and of actions."""


def spaces_of(env: Any, name: str) -> dict[str, SpacesOf]:
    """Return the spaces of each agent of `env`, in the order of its agents; `name` is for messages.

    Observations have the shapes that a reset gives, since some environments declare others. Raises ConfigInvalid.
    """
    seen = jax.eval_shape(env.reset, jax.random.PRNGKey(0))[0]
    agents = list(env.agents)
    if not isinstance(seen, dict) or not all(isinstance(agent, str) and agent in seen for agent in agents):
        problem = (
            f"{name} of JaxMARL does not give an observation for each of its agents {agents} by name, so there is "
            "nothing to hand to policies; choose another env.name"
        )
        raise ConfigInvalid([problem])
    return {
        agent: (
            _converted(env.observation_space(agent), seen[agent].shape, f"observations of {agent} in {name}"),
            _converted(env.action_space(agent), None, f"actions of {agent} in {name}"),
        )
        for agent in agents
    }


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
