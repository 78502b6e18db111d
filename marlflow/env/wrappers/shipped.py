"""Environment wrappers for both APIs, used by conf/wrappers; SuperSuit's can be used as well.

SuperSuit 3.11 breaks exact experience: it changes a Parallel environment's observations twice (converting to AEC and
back), pads a Discrete observation with its space, indicates agents outside the declared bounds, and under black death
ends episodes a step late and always as terminated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from supersuit.utils.action_transforms import homogenize_ops
from supersuit.utils.basic_transforms import color_reduction
from supersuit.utils.basic_transforms import resize as resizing

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import describe_space
from marlflow.env.agents import declared_agents, group_of
from marlflow.env.masking import MaskedView
from marlflow.env.wrappers.black_death import BlackDeath, KeepsReceiving
from marlflow.env.wrappers.joint_state import with_joint_state
from marlflow.env.wrappers.reward_scale import ScaleBy, scales_for, with_scaled_rewards
from marlflow.env.wrappers.wrapping import (
    FlatActions,
    NamedAgents,
    RandomOpening,
    change_actions,
    change_observations,
    entries,
    move_mask_to_info,
    remember_actions,
)

_Env: TypeAlias = "AECEnv[Any, Any, Any] | ParallelEnv[Any, Any, Any]"
_Space = spaces.Space[Any]


def gray(env: _Env, mode: str = "full") -> Any:
    """Convert colors [height, width, 3] to [height, width]: luminance (full), or one channel (R, G, B)."""
    return _change_images(env, color_reduction, mode)


def resize(env: _Env, x_size: int = 84, y_size: int = 84, linear_interp: bool = True) -> Any:
    """Resize images to `y_size` times `x_size` pixels."""
    return _change_images(env, resizing, (x_size, y_size, linear_interp))


def _change_images(env: _Env, transform: Any, parameter: Any) -> Any:
    def space_of(agent: str) -> Any:
        space = env.observation_space(agent)
        if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
            raise ConfigInvalid([f"agent {agent!r} sees {describe_space(space)}, not pixels"])
        transform.check_param(space, parameter)
        return transform.change_obs_space(space, parameter)

    def change(observation: Any, _: str) -> Any:
        # SuperSuit reads only the space's shape, which the observation has too; this saves a lookup of the space.
        return transform.change_observation(observation, observation, parameter)

    return change_observations(env, change, space_of)


def clip_observations(env: _Env) -> Any:
    """Clip observations to the bounds of their Boxes, also in a Dict or Tuple."""
    _check_bounds(env)
    return change_observations(
        env, lambda seen, agent: _clipped(env.observation_space(agent), seen), env.observation_space
    )


def _check_bounds(env: _Env) -> None:
    seen = {agent: env.observation_space(agent) for agent in declared_agents(env)}
    if not any(isinstance(entry, spaces.Box) for space in seen.values() for entry in entries(space)):
        agent, space = next(iter(seen.items()))
        raise ConfigInvalid([f"agent {agent!r} sees {describe_space(space)}, without a Box, which alone has bounds"])


def _clipped(space: _Space, seen: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _clipped(inner, seen[key]) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_clipped(inner, entry) for inner, entry in zip(space.spaces, seen, strict=True))
    return np.asarray(np.clip(seen, space.low, space.high)) if isinstance(space, spaces.Box) else seen


def widen_bounds(env: _Env) -> Any:
    """Declare observations without bounds: floats from -inf to inf, integers as wide as their dtype."""
    _check_bounds(env)
    return change_observations(env, lambda seen, _: seen, lambda agent: unbounded(env.observation_space(agent)))


def unbounded(space: _Space) -> _Space:
    """Return `space` with Boxes that are as wide as their dtype, also in a Dict or Tuple."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: unbounded(inner) for key, inner in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([unbounded(inner) for inner in space.spaces])
    if not isinstance(space, spaces.Box) or space.dtype.kind == "b":
        return space
    dtype: Any = space.dtype
    low, high = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, space.shape, dtype.type)


def pad_observations(env: _Env) -> Any:
    """Give all agents one observation space: Boxes are padded with zeros, Discrete spaces with unused values."""
    padded = common_space("see", declared_agents(env), env.observation_space)

    def change(observation: Any, _: str) -> Any:
        has_room = isinstance(padded, spaces.Box) and padded.shape
        return homogenize_ops.pad_to(observation, padded.shape, 0) if has_room else observation

    return change_observations(env, change, lambda _: padded)


def pad_actions(env: _Env) -> Any:
    """Give all agents one action space; surplus Box components are ignored, surplus Discrete actions become 0.

    Box actions are clipped to the bounds of the agent's own space.
    """
    spaces_of = {agent: env.action_space(agent) for agent in declared_agents(env)}
    padded = common_space("do", list(spaces_of), env.action_space)
    for agent, space in spaces_of.items():
        seen = env.observation_space(agent)
        if space != padded and MaskedView(seen, space).is_inside:
            raise ConfigInvalid([f"agent {agent!r} sees {describe_space(seen)}, with a mask of its own actions only"])

    def change(action: Any, agent: str) -> Any:
        own = homogenize_ops.dehomogenize_actions(spaces_of[agent], action)
        return np.clip(own, spaces_of[agent].low, spaces_of[agent].high) if isinstance(padded, spaces.Box) else own

    return change_actions(env, change, lambda _: padded)


def flatten_actions(env: _Env) -> Any:
    """Make one MultiDiscrete or Box of the entries of Dict and Tuple actions (see FlatActions)."""
    kinds = {agent: FlatActions(agent, env.action_space(agent)) for agent in declared_agents(env)}
    return change_actions(env, lambda action, agent: kinds[agent].nested(action), lambda agent: kinds[agent].space)


def agent_indicator(env: _Env, type_only: bool = False) -> Any:
    """Add the agent's identity to observations, or with `type_only` its group (name without number).

    A vector gets an entry and an image a channel per agent: the space's largest value (1 if unbounded) for the agent
    itself, 0 for the others.
    """
    identity = identity_of(env, type_only)
    numbers, marks, count = identity.numbers, identity.marks, identity.total
    if marks is None:
        return change_observations(env, lambda value, agent: value * count + numbers[agent], lambda _: identity.space)
    return change_observations(
        env, lambda observation, agent: _append_marks(observation, marks[agent]), lambda _: identity.space
    )


class Identity(NamedTuple):
    """How `agent_indicator` shows who an agent is: `marks` beside an array, or a value as value * total + number."""

    space: _Space
    total: int
    numbers: Mapping[str, int]
    marks: Mapping[str, Array] | None


def identity_of(env: Any, type_only: bool) -> Identity:
    """Return how agents of `env` are shown who they are; raises ConfigInvalid."""
    agents = declared_agents(env)
    shown = {agent: group_of(agent) if type_only else agent for agent in agents}
    groups = list(dict.fromkeys(shown.values()))
    first = env.observation_space(agents[0])
    if other := next((agent for agent in agents if env.observation_space(agent) != first), None):
        other_space = describe_space(env.observation_space(other))
        both = f"{describe_space(first)}, and {other!r} {other_space}, or within other bounds"
        problem = f"{agents[0]!r} sees {both}; it needs one space for all, so put padding before it"
        raise ConfigInvalid([problem])
    numbers = {agent: groups.index(shown[agent]) for agent in agents}
    if isinstance(first, spaces.Discrete):
        # Values are shown counted from 0.
        numbers = {agent: number - int(first.start) * len(groups) for agent, number in numbers.items()}
        return Identity(spaces.Discrete(int(first.n) * len(groups)), len(groups), numbers, None)
    if not isinstance(first, spaces.Box) or len(first.shape) not in (1, 2, 3):
        raise ConfigInvalid([f"agents see {describe_space(first)}; it takes vectors, images and Discrete observations"])
    largest = first.high.max() if (first.high < _unbounded_from(first.dtype)).all() and first.high.max() > 0 else 1
    marks = {agent: np.array([largest * (shown[agent] == group) for group in groups], first.dtype) for agent in agents}
    highest = np.full(len(groups), largest, first.dtype)
    low, high = _append_marks(first.low, np.zeros_like(highest)), _append_marks(first.high, highest)
    return Identity(spaces.Box(low, high, dtype=first.dtype.type), len(groups), numbers, marks)


def _unbounded_from(dtype: Any) -> float:
    """Return the upper bound from which on observations count as unbounded; a byte's 255 is that of pixels."""
    if np.issubdtype(dtype, np.floating):
        return float(np.finfo(np.float32).max)
    return float(np.iinfo(dtype).max) if dtype.itemsize > 1 else np.inf


def last_action(env: _Env) -> Any:
    """Add each agent's last action to its observation, a vector: one-hot if it is Discrete; zeros before the first one.

    As EPyMARL's `obs_last_action` (Papoudakis et al., arXiv:2006.07869).
    """
    kinds = {
        agent: ActionVector(agent, env.observation_space(agent), env.action_space(agent))
        for agent in declared_agents(env)
    }
    return remember_actions(env, kinds)


class ActionVector:
    """Shows the last action of `agent` as `count` numbers after its observation, in the space `wider`.

    `start` is the first Discrete action; None for a Box. Raises ConfigInvalid for other spaces.
    """

    def __init__(self, agent: str, seen: _Space, action: _Space) -> None:
        if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
            raise ConfigInvalid([f"agent {agent!r} sees {describe_space(seen)}, not a vector"])
        if isinstance(action, spaces.Discrete):
            self.start: int | None = int(action.start)
            self.count = int(action.n)
            low, high = np.zeros(self.count), np.ones(self.count)
        elif isinstance(action, spaces.Box) and len(action.shape) == 1:
            self.start, self.count = None, action.shape[0]
            low, high = np.minimum(action.low, 0.0), np.maximum(action.high, 0.0)
        else:
            raise ConfigInvalid([f"agent {agent!r} has {describe_space(action)} actions, not Discrete or a Box vector"])
        # Whole numbers have no room for a Box's.
        dtype: Any = seen.dtype if seen.dtype.kind == "f" or self.start is not None else np.dtype(np.float32)
        lowest, highest = (np.concatenate(pair).astype(dtype) for pair in ([seen.low, low], [seen.high, high]))
        self.wider = spaces.Box(lowest, highest, dtype=dtype.type)

    def of(self, action: Any) -> Array:
        """Return the numbers of an action; zeros for None."""
        dtype = self.wider.dtype
        if action is None:
            return np.zeros(self.count, dtype)
        if self.start is None:
            numbers: Array = np.asarray(action, dtype)
            return numbers
        one_hot: Array = (np.arange(self.count) == int(action) - self.start).astype(dtype)
        return one_hot


def _append_marks(observation: Any, marks: Array) -> Array:
    array = np.asarray(observation)
    array = array[..., None] if array.ndim == 2 else array
    return np.concatenate([array, np.broadcast_to(marks, (*array.shape[:-1], len(marks)))], axis=-1, dtype=marks.dtype)


def black_death(env: _Env, keeps_receiving: KeepsReceiving = False) -> Any:
    """Keep ended agents until the episode ends, with zero observations.

    Their rewards are 0 where the environment gives them none, or with `keeps_receiving` the mean of the living agents'
    rewards: of all (True, for one team) or of those of their group (name without number; "group", for several sides).
    """
    if not isinstance(env, ParallelEnv):
        raise ConfigInvalid(["it takes a Parallel environment, not an AEC one: name its parallel_env"])
    for agent in declared_agents(env):
        if not isinstance(env.observation_space(agent), spaces.Box):
            raise ConfigInvalid([f"agent {agent!r} sees {describe_space(env.observation_space(agent))}, not a Box"])
        space = env.observation_space(agent)
        if not (np.all(space.low <= 0) and np.all(space.high >= 0)):
            raise ConfigInvalid(
                [f"agent {agent!r} can never see zeros: they are outside {describe_space(space)}'s bounds"]
            )
    return BlackDeath(env, keeps_receiving)


def joint_state(env: _Env) -> Any:
    """Add `state()`: for all declared agents their observation, as numbers, and a bit that says whether it is there.

    Absent agents (terminated, or not there yet) are zeros. Action masks are left out. Raises ConfigInvalid for
    observations that policies cannot see.
    """
    declared_agents(env)
    return with_joint_state(env)


def reward_scale(
    env: _Env, discount: float = 0.99, env_steps: int = 1_000, by: ScaleBy = "agent", scale: float | None = None
) -> Any:
    """Divide rewards by the standard deviation of discounted returns; nothing is subtracted.

    It is measured once, in `env_steps` of random play, by agent, by group (name without number) or for all together.
    With `scale`, all rewards are divided by it, and nothing is measured.
    """
    agents = declared_agents(env)
    return with_scaled_rewards(env, scales_for(agents, lambda: env, discount, env_steps, by, scale))


def named_agents(env: _Env) -> Any:
    """Name agents that are numbers: 0 is agent_0."""
    if not isinstance(env, ParallelEnv):
        raise ConfigInvalid(["it takes a Parallel environment, not an AEC one: name its parallel_env"])
    return NamedAgents(env)


def mask_in_info(env: _Env) -> Any:
    """Move action masks from observations to infos, so that other wrappers can change the rest.

    Agents without a mask in their observations see what they saw. Raises ConfigInvalid if none has one.
    """
    seen = {agent: env.observation_space(agent) for agent in declared_agents(env)}
    if seen and not any(MaskedView(space).is_inside for space in seen.values()):
        agent, space = next(iter(seen.items()))
        raise ConfigInvalid(
            [f"no agent has an action_mask in its observations; {agent!r} sees {describe_space(space)}"]
        )
    return move_mask_to_info(env)


def random_opening(env: _Env, moves: int = 20) -> Any:
    """Begin each episode of an AEC environment with 0 to `moves` random moves (see RandomOpening)."""
    if problem := random_opening_problem(env, isinstance(env, AECEnv), moves):
        raise ConfigInvalid([problem])
    return RandomOpening(env, moves)


def random_opening_problem(env: Any, in_turns: bool, moves: int) -> str:
    """Return why `env` cannot begin with random moves, or ""; `in_turns`: its agents act one after the other."""
    if not in_turns:
        return "it takes an AEC environment, in which agents take turns, not a Parallel one"
    if moves < 1:
        return f"moves is at least 1, not {moves}"
    for agent in declared_agents(env):
        if not isinstance(env.action_space(agent), spaces.Discrete):
            return f"agent {agent!r} has {describe_space(env.action_space(agent))} actions, not Discrete"
    return ""


def common_space(verb: str, agents: Sequence[str], space_of: Callable[[str], _Space]) -> Any:
    """Return a space that has room for those of all `agents`, which `verb` them; raises ConfigInvalid."""
    original = [space_of(agent) for agent in agents]
    try:
        homogenize_ops.check_homogenize_spaces(original)
        if any(getattr(space, "start", 0) for space in original):
            raise ValueError("values of Discrete have to be counted from 0")
    except (AssertionError, ValueError) as error:
        different = ", ".join(
            f"{agent!r} {describe_space(space)}" for agent, space in zip(agents, original, strict=True)
        )
        raise ConfigInvalid([f"agents {verb} {different}: {error}"]) from error
    first: Any = original[0]
    if isinstance(first, spaces.Box) and not first.shape:
        # SuperSuit makes arrays of single numbers.
        boxes: list[Any] = original
        return spaces.Box(min(one.low for one in boxes), max(one.high for one in boxes), (), first.dtype.type)
    return homogenize_ops.homogenize_spaces(original)
