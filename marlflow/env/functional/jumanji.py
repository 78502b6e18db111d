"""Environments of jumanji with several agents: LevelBasedForaging, RobotWarehouse, Connector, Cleaner and others.

jumanji: Bonnet et al., "Jumanji: a Diverse Suite of Scalable Reinforcement Learning Environments in JAX" (ICLR 2024,
arXiv:2306.09884). `pip install 'marlflow[jumanji]'`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import jumanji
import numpy as np
from gymnasium import spaces

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant
from marlflow.env.functional.batch import FunctionalBatch, batch_of
from marlflow.env.functional_protocol import ByGroup, FunctionalStep, is_of_agents

DoneMeans = Literal["auto", "terminated", "truncated"]
_MEANINGS = "auto", "terminated", "truncated"
_AGENT = "agent"
_VIEWS = "agents_view", "searcher_views"
_TILES = 3


class JumanjiGame:
    """An environment of jumanji; its state is jumanji's, which draws from a key of its own.

    An agent observes its view, where jumanji has one (`agents_view`). In Cleaner it is an image of the kinds of tiles,
    the agent's own place and the other agents'; in Connector of the agent's own path, head and target, and the other
    agents'. Elsewhere it is a vector: the agent's number (one-hot), arrays of all agents with its own entries first,
    and all other arrays.

    done_means: `auto`: agents terminate where jumanji's discount is 0, and are truncated where an episode ends without.
        `terminated` or `truncated`: always that.
    """

    turn_based = False

    def __init__(self, env: Any, name: str, done_means: DoneMeans) -> None:
        self.env, self._done_means = env, done_means
        num_agents, self._action_space = _actions(env, name)
        self.groups = {_AGENT: [f"{_AGENT}_{number}" for number in range(num_agents)]}
        self._num_agents, self._action_dtype = num_agents, env.action_spec.dtype
        seen = jax.eval_shape(env.reset, jax.ShapeDtypeStruct((2,), np.uint32))[1].observation
        self._views = _views_of(seen, num_agents)
        self._has_masks = isinstance(self._action_space, spaces.Discrete) and hasattr(seen, "action_mask")
        like = jax.eval_shape(self._views, seen)
        self._observation_space = _space(like, env.observation_spec)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        del agent
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        del agent
        return self._action_space

    def render(self, state: Any) -> Any:
        """Return jumanji's picture of a state."""
        viewer = self.env._viewer
        # Only the constructor of each class of viewers chooses this, and jumanji's own choice is a window.
        viewer._display = viewer._display_rgb_array
        return self.env.render(state)[..., :3]

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        state, shown = self.env.reset(key)
        return state, FunctionalStep(*self._seen(shown.observation, {}, {}, {}))

    def step(self, key: Any, state: Any, actions: ByGroup) -> tuple[Any, FunctionalStep]:
        del key
        state, shown = self.env.step(state, actions[_AGENT].astype(self._action_dtype))
        over = shown.discount == 0
        ends = over | shown.last()
        terminated = over if self._done_means == "auto" else ends & (self._done_means == "terminated")
        step = self._seen(shown.observation, {_AGENT: shown.reward}, {_AGENT: terminated}, {_AGENT: ends & ~terminated})
        infos = {name: {_AGENT: of} for name, of in (shown.extras or {}).items() if is_of_agents(of, self._num_agents)}
        return state, step._replace(infos=infos)

    def _seen(self, seen: Any, rewards: ByGroup, terminated: ByGroup, truncated: ByGroup) -> FunctionalStep:
        masks = {_AGENT: seen.action_mask} if self._has_masks else {}
        return FunctionalStep({_AGENT: self._views(seen)}, rewards, terminated, truncated, action_masks=masks)


def _actions(env: Any, name: str) -> tuple[int, spaces.Space[Any]]:
    """Return the number of agents, and the space of one agent's actions."""
    spec = env.action_spec
    many = getattr(spec, "num_values", None)
    if many is not None and np.ndim(many) == 1 and len(set(np.asarray(many).tolist())) == 1:
        return len(many), spaces.Discrete(int(many[0]))
    if many is None and len(spec.shape) == 2:
        low, high = (np.broadcast_to(np.asarray(bound), spec.shape)[0] for bound in (spec.minimum, spec.maximum))
        return spec.shape[0], spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    mask = getattr(env.observation_spec, "action_mask", None)
    if many is None and mask is not None and len(mask.shape) == 2 and spec.shape == mask.shape[:1]:
        return spec.shape[0], spaces.Discrete(mask.shape[1])
    problem = f"{name} of jumanji has no actions of several agents (its action_spec is {spec!r:.120})"
    raise ConfigInvalid([f"{problem}; choose another env.name, such as LevelBasedForaging-v0"])


def _views_of(seen: Any, num_agents: int) -> Callable[[Any], Any]:
    """Return a function from jumanji's observation to the observations of all agents, [A, ...]."""
    for field in _VIEWS:
        if hasattr(seen, field):
            return lambda seen: getattr(seen, field)
    if hasattr(seen, "grid") and hasattr(seen, "agents_locations"):
        return _tile_images
    if seen._fields == ("grid", "action_mask", "step_count"):
        return lambda seen: _path_images(seen.grid, num_agents)

    def vectors(seen: Any) -> Any:
        arrays = [getattr(seen, field) for field in seen._fields if field != "action_mask"]
        leaves = [leaf.astype(jnp.float32) for leaf in jax.tree_util.tree_leaves(arrays) if leaf.ndim]
        shared = [leaf.ravel() for leaf in leaves if len(leaf) != num_agents]
        rows = []
        for agent in range(num_agents):
            own = [jnp.roll(leaf, -agent, axis=0).ravel() for leaf in leaves if len(leaf) == num_agents]
            rows.append(jnp.concatenate([jax.nn.one_hot(agent, num_agents), *own, *shared]))
        return jnp.stack(rows)

    return vectors


def _path_images(grid: Any, num_agents: int) -> Any:
    """Return images int8 [A, rows, columns, 6] of Connector: the agent's path, head and target, then all others'."""
    kinds, owners = jax.nn.one_hot((grid - 1) % 3, 3, dtype=jnp.int8), (grid - 1) // 3
    taken = (grid > 0).astype(jnp.int8)
    is_own = (owners[None] == jnp.arange(num_agents)[:, None, None]).astype(jnp.int8) * taken
    own, others = is_own[..., None] * kinds, (taken - is_own)[..., None] * kinds
    return jnp.concatenate([own, others], axis=-1)


def _tile_images(seen: Any) -> Any:
    """Return images int8 [A, rows, columns, 5]: whether a tile is dirty, clean, a wall, has the agent, has others."""
    tiles = jax.nn.one_hot(seen.grid, _TILES, dtype=jnp.int8)
    num_agents = len(seen.agents_locations)
    rows, columns = seen.agents_locations.T
    own = jnp.zeros((num_agents, *seen.grid.shape), jnp.int8).at[jnp.arange(num_agents), rows, columns].set(1)
    others = ((own.sum(axis=0)[None] - own) > 0).astype(jnp.int8)
    shared = jnp.broadcast_to(tiles, (num_agents, *tiles.shape))
    return jnp.concatenate([shared, own[..., None], others[..., None]], axis=-1)


def _space(like: Any, spec: Any) -> spaces.Box:
    """Return the space of one agent's observation: within jumanji's bounds, where it declares these."""
    shape, dtype = like.shape[1:], np.dtype(like.dtype)
    for field in _VIEWS:
        declared = getattr(spec, field, None)
        if declared is not None and tuple(declared.shape) == like.shape and hasattr(declared, "minimum"):
            low, high = (np.broadcast_to(np.asarray(b), like.shape)[0] for b in (declared.minimum, declared.maximum))
            return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
    if dtype == np.int8:
        return spaces.Box(0, 1, shape, np.int8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def batched_env(
    num_envs: int,
    name: str = "LevelBasedForaging-v0",
    parameters: Mapping[str, Any] | None = None,
    generator: Mapping[str, Any] | None = None,
    max_env_steps: int | None = None,
    done_means: DoneMeans = "auto",
    render_mode: str | None = None,
) -> FunctionalBatch:
    """Return `num_envs` environments of jumanji, with agents agent_0, agent_1, ...

    name: as in `jumanji.registered_environments()`.
    parameters: arguments of the environment, such as `{"time_limit": 50}`.
    generator: arguments of what draws its initial states, such as `{"grid_size": 10, "num_agents": 3}`; what is left
        out is as in jumanji's own.
    max_env_steps: env steps after which all agents are truncated; None: the environment's own limit alone.
    done_means: what an end means (`JumanjiGame`).
    render_mode: `rgb_array`, or None.

    Raises ConfigInvalid.
    """
    known = sorted(jumanji.registered_environments())
    if name not in known:
        raise ConfigInvalid([f"jumanji has no environment {name!r}{meant(name, known)}"])
    if done_means not in _MEANINGS:
        raise ConfigInvalid([f"there is no done_means {done_means!r}{meant(done_means, _MEANINGS, 'there are')}"])
    given, drawn = dict(parameters or {}), dict(generator or {})
    return batch_of(
        num_envs,
        f"jumanji_{name}",
        ("jumanji", name, done_means),
        {"parameters": given, "generator": drawn},
        lambda: JumanjiGame(_made(name, given, drawn), name, done_means),
        max_env_steps,
        render_mode,
    )


def _made(name: str, parameters: Mapping[str, Any], generator: Mapping[str, Any]) -> Any:
    arguments = dict(parameters)
    try:
        if generator:
            arguments["generator"] = _generator(jumanji.make(name), name, generator)
        return jumanji.make(name, **arguments)
    except ConfigInvalid:
        raise
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in {**parameters, **generator}.items())
        problem = f"{name} of jumanji cannot be made with {given or 'its defaults'}: {type(error).__name__}: {error}"
        raise ConfigInvalid([f"{problem} (env.parameters, env.generator)"]) from error


def _generator(env: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    """Return the generator of `env` with other arguments; arguments that are not given stay as they are in `env`."""
    usual = getattr(env, "generator", getattr(env, "_generator", None))
    if usual is None:
        raise ConfigInvalid([f"{name} of jumanji has no generator; remove env.generator"])
    parameters = list(inspect.signature(type(usual)).parameters)
    if strangers := [key for key in arguments if key not in parameters]:
        problem = f"the generator of {name} has no argument {strangers[0]!r}{meant(strangers[0], parameters)}"
        raise ConfigInvalid([f"{problem}; it has {', '.join(parameters)}"])
    kept = {
        key: getattr(usual, key) if hasattr(usual, key) else getattr(usual, f"_{key}")
        for key in parameters
        if hasattr(usual, key) or hasattr(usual, f"_{key}")
    }
    return type(usual)(**{**kept, **arguments})
