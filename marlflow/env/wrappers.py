"""Environment wrappers for both APIs, used by conf/wrappers; SuperSuit's can be used as well.

These replace wrappers that SuperSuit 3.11 lacks or that break exact experience: it changes a Parallel environment's
observations twice (converting to AEC and back), pads a Discrete observation with its space, indicates agents outside
the declared bounds, and under black death ends episodes a step late and always as terminated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from supersuit.utils.action_transforms import homogenize_ops
from supersuit.utils.basic_transforms import color_reduction
from supersuit.utils.basic_transforms import resize as resizing

from marlflow.base.batch import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.env.wrapping import BlackDeath, acting, mask_apart, seen

_Env: TypeAlias = "AECEnv[Any, Any, Any] | ParallelEnv[Any, Any, Any]"
_Space = spaces.Space[Any]
_MASK = "action_mask"


def gray(env: _Env, mode: str = "full") -> Any:
    """Convert colors [height, width, 3] to [height, width]: a luminance mix (full), or one channel (R, G, B)."""
    return _image_changed(env, color_reduction, mode)


def resize(env: _Env, x_size: int = 84, y_size: int = 84, linear_interp: bool = True) -> Any:
    """Resize images to `y_size` times `x_size` pixels."""
    return _image_changed(env, resizing, (x_size, y_size, linear_interp))


def _image_changed(env: _Env, transform: Any, parameter: Any) -> Any:
    def space_of(agent: str) -> Any:
        space = env.observation_space(agent)
        if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
            raise ConfigInvalid([f"agent {agent!r} sees {_short(space)}, not pixels"])
        transform.check_param(space, parameter)
        return transform.change_obs_space(space, parameter)

    def change(observation: Any, _: str) -> Any:
        # SuperSuit reads only the space's shape, which the observation has too; this saves a lookup of the space.
        return transform.change_observation(observation, observation, parameter)

    return seen(env, change, space_of)


def clip_observations(env: _Env) -> Any:
    """Clip observations to the bounds of their spaces."""

    def space_of(agent: str) -> Any:
        space = env.observation_space(agent)
        if not isinstance(space, spaces.Box):
            raise ConfigInvalid([f"agent {agent!r} sees {_short(space)}, not a Box, which alone has bounds"])
        return space

    def change(observation: Any, agent: str) -> Any:
        space = env.observation_space(agent)
        return np.clip(observation, space.low, space.high)

    return seen(env, change, space_of)


def pad_observations(env: _Env) -> Any:
    """Give all agents one observation space: Box observations end in zeros, a Discrete one has unused values."""
    padded = _padded("see", _declared(env), env.observation_space)

    def change(observation: Any, _: str) -> Any:
        return homogenize_ops.pad_to(observation, padded.shape, 0) if isinstance(padded, spaces.Box) else observation

    return seen(env, change, lambda _: padded)


def pad_actions(env: _Env) -> Any:
    """Give all agents one action space; surplus Box components are ignored, surplus Discrete actions become 0."""
    own = {agent: env.action_space(agent) for agent in _declared(env)}
    padded = _padded("do", list(own), env.action_space)
    return acting(env, lambda action, agent: homogenize_ops.dehomogenize_actions(own[agent], action), padded)


def agent_indicator(env: _Env, type_only: bool = False) -> Any:
    """Add to observations which agent it is, or with `type_only` which group (its name without number).

    A vector gets an entry and an image a channel per agent: the space's largest value (1 if unbounded) for the agent
    itself, 0 for the others.
    """
    agents = _declared(env)
    of = {agent: re.sub(r"_\d+$", "", agent) if type_only else agent for agent in agents}
    indicated = list(dict.fromkeys(of.values()))
    first = env.observation_space(agents[0])
    if other := next((agent for agent in agents if env.observation_space(agent) != first), None):
        spaces_seen = f"{_short(first)}, and {other!r} {_short(env.observation_space(other))}, or within other bounds"
        problem = f"{agents[0]!r} sees {spaces_seen}; it needs one space for all, so put padding before it"
        raise ConfigInvalid([problem])
    if isinstance(first, spaces.Discrete):
        count, each = len(indicated), spaces.Discrete(int(first.n) * len(indicated))
        return seen(env, lambda value, agent: value * count + indicated.index(of[agent]), lambda _: each)
    if not isinstance(first, spaces.Box) or len(first.shape) not in (1, 2, 3):
        raise ConfigInvalid([f"agents see {_short(first)}; it takes vectors, images and Discrete observations"])
    largest = first.high.max() if np.isfinite(first.high).all() else 1
    marks = {agent: np.array([largest * (of[agent] == one) for one in indicated], first.dtype) for agent in agents}
    highest = np.full(len(indicated), largest, first.dtype)
    low, high = _beside(first.low, np.zeros_like(highest)), _beside(first.high, highest)
    wider = spaces.Box(low, high, dtype=first.dtype.type)
    return seen(env, lambda observation, agent: _beside(observation, marks[agent]), lambda _: wider)


def _beside(observation: Any, marks: Array) -> Array:
    """Append `marks` to a vector as entries, or to an image as channels."""
    array = np.asarray(observation)
    array = array[..., None] if array.ndim == 2 else array
    return np.concatenate([array, np.broadcast_to(marks, (*array.shape[:-1], len(marks)))], axis=-1, dtype=marks.dtype)


def black_death(env: _Env) -> Any:
    """Keep ended agents until the episode ends, with zero observations and rewards; then each ends as it did."""
    if not isinstance(env, ParallelEnv):
        raise ConfigInvalid(["it takes a Parallel environment, not an AEC one: name its parallel_env"])
    for agent in _declared(env):
        if not isinstance(env.observation_space(agent), spaces.Box):
            raise ConfigInvalid([f"agent {agent!r} sees {_short(env.observation_space(agent))}, not a Box"])
        space = env.observation_space(agent)
        if not (np.all(space.low <= 0) and np.all(space.high >= 0)):
            raise ConfigInvalid([f"agent {agent!r} can never see zeros: they are outside {_short(space)}'s bounds"])
    return BlackDeath(env)


def mask_in_info(env: _Env) -> Any:
    """Move action masks from observations to infos, so that other wrappers can change the remaining observation."""
    for agent in _declared(env):
        space = env.observation_space(agent)
        if not isinstance(space, spaces.Dict) or set(space.spaces) != {"observation", _MASK}:
            raise ConfigInvalid(
                [f"agent {agent!r} sees {_short(space)}, not a Dict of an observation and an action_mask"]
            )
    return mask_apart(env)


def _declared(env: _Env) -> Sequence[str]:
    agents = list(getattr(env, "possible_agents", ()))
    if not agents:
        raise ConfigInvalid(["the environment does not say beforehand which agents it has (possible_agents)"])
    return agents


def _padded(verb: str, agents: Sequence[str], space_of: Callable[[str], _Space]) -> Any:
    """Return the smallest space that contains all the agents' own."""
    own = [space_of(agent) for agent in agents]
    try:
        homogenize_ops.check_homogenize_spaces(own)
    except AssertionError as error:
        different = ", ".join(f"{agent!r} {_short(space)}" for agent, space in zip(agents, own, strict=True))
        raise ConfigInvalid([f"agents {verb} {different}: {error}"]) from error
    return homogenize_ops.homogenize_spaces(own)


def _short(space: _Space) -> str:
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {_short(one)}' for key, one in space.items())})"
    return f"Box{space.shape}" if isinstance(space, spaces.Box) else str(space)
