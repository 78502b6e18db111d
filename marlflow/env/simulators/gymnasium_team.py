"""Gymnasium environments of several agents, with Tuple spaces, as Parallel environments; grids with their own pictures.

    env = marlflow.env.simulators.gymnasium_team.parallel_env("my_package.games:MyGame-v0", {"size": 5})

The form of level-based foraging (`lbf`) and the robotic warehouse (`rware`): spaces are Tuples with an entry
for each agent, and rewards are a list.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.env.user_code import import_module, own_lines

_PICTURE = "rgb_array"
_CELL = 32
"""Pixels of a cell's side."""
_GROUND, _LINE, _TEXT = (245, 245, 240), (215, 215, 210), (255, 255, 255)
AGENT_COLORS = (0, 114, 178), (213, 94, 0), (0, 128, 95), (120, 94, 160), (90, 90, 90)


class GymnasiumTeam(ParallelEnv[str, Any, Any]):
    """Agents `agent_0`, `agent_1`, ... of a gymnasium environment `env` with Tuple spaces.

    A single reward, flag or info counts for every agent. In infos, a list or tuple with an entry for each agent, such
    as action masks, is divided among them. An agent that ends before the others leaves; from then on the environment
    gets its space's first action, and the agent's rewards are dropped. `max_cycles` truncates all agents after that
    many env steps; None leaves the ends to the environment. `final_infos`: once all have ended, the infos of the last
    step of those that ended before it. Raises ConfigInvalid for other spaces.
    """

    def __init__(self, env: gym.Env[Any, Any], max_cycles: int | None = None) -> None:
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        self._observation_spaces = _entries(name, "observation", env.observation_space)
        self._action_spaces = _entries(name, "action", env.action_space)
        counts = len(self._observation_spaces), len(self._action_spaces)
        if counts[0] != counts[1]:
            raise ConfigInvalid(
                [f"environment {name} has {counts[0]} observation spaces, but {counts[1]} action spaces"]
            )
        if max_cycles is not None and (type(max_cycles) is not int or max_cycles < 1):
            raise ConfigInvalid([f"max_cycles must be a whole number from 1, or null for no limit, not {max_cycles!r}"])
        self.metadata = {"name": name, **env.metadata}
        self.render_mode = env.render_mode
        self.possible_agents = [f"agent_{number}" for number in range(counts[0])]
        self.agents: list[str] = []
        self.final_infos: dict[str, dict[str, Any]] = {}
        self._env, self._max_cycles, self._cycles = env, max_cycles, 0
        self._numbers = {agent: number for number, agent in enumerate(self.possible_agents)}

    @property
    def game(self) -> Any:
        """The gymnasium environment, without gymnasium's wrappers."""
        return self._env.unwrapped

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._observation_spaces[self._numbers[agent]]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._action_spaces[self._numbers[agent]]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, info = self._env.reset(seed=seed, options=options)
        self.agents, self.final_infos, self._cycles = list(self.possible_agents), {}, 0
        return self._by_agent(observations, "observations"), self._infos(info, self.agents)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        acting = zip(self.possible_agents, self._action_spaces, strict=True)
        chosen = [actions[agent] if agent in self.agents else _first_action(space) for agent, space in acting]
        observations, rewards, terminated, truncated, info = self._env.step(tuple(chosen))
        self._cycles += 1
        seen, paid, infos = (
            self._by_agent(observations, "observations"),
            self._each(rewards, "rewards"),
            self._infos(info, self.agents),
        )
        terminations = {agent: bool(end) for agent, end in self._each(terminated, "terminations").items()}
        is_late = self._max_cycles is not None and self._cycles >= self._max_cycles
        truncations = {
            agent: (bool(end) or is_late) and not terminations[agent]
            for agent, end in self._each(truncated, "truncations").items()
        }
        self.agents = [agent for agent in self.agents if not (terminations[agent] or truncations[agent])]
        if not self.agents:
            self.final_infos = self._infos(info, [agent for agent in self.possible_agents if agent not in infos])
        return seen, {agent: float(reward) for agent, reward in paid.items()}, terminations, truncations, infos

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()

    def _by_agent(self, values: Any, what: str) -> dict[str, Any]:
        """Return the living agents' entries of `values`, a list or tuple by agent."""
        if len(values) != len(self.possible_agents):
            raise ValueError(f"expected {what} of {len(self.possible_agents)} agents, got {len(values)}")
        return {agent: values[self._numbers[agent]] for agent in self.agents}

    def _each(self, values: Any, what: str) -> dict[str, Any]:
        return dict.fromkeys(self.agents, values) if np.ndim(values) == 0 else self._by_agent(values, what)

    def _infos(self, info: Mapping[str, Any], agents: Sequence[str]) -> dict[str, dict[str, Any]]:
        count = len(self.possible_agents)
        divided = {key for key, value in info.items() if isinstance(value, list | tuple) and len(value) == count}
        return {
            agent: {key: value[self._numbers[agent]] if key in divided else value for key, value in info.items()}
            for agent in agents
        }


def _entries(name: str, kind: str, space: spaces.Space[Any]) -> Sequence[spaces.Space[Any]]:
    if isinstance(space, spaces.Tuple) and len(space.spaces):
        return tuple(space.spaces)
    raise ConfigInvalid([f"environment {name} has the {kind} space {space}, not a Tuple with an entry for each agent"])


def _first_action(space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return np.array(space.start)
    if isinstance(space, spaces.Dict):
        return {key: _first_action(entry) for key, entry in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(_first_action, space.spaces))
    zeros = np.zeros(space.shape or (), space.dtype or np.float32)
    return np.clip(zeros, space.low, space.high) if isinstance(space, spaces.Box) else zeros


def parallel_env(
    id: str, arguments: Mapping[str, Any] | None = None, max_cycles: int | None = None, render_mode: str | None = None
) -> GymnasiumTeam:
    """Make the registered environment `id`, or `module:id` if importing a module registers it.

    `arguments` are the environment's own, and replace the registered ones. Raises ConfigInvalid if it cannot be
    made or has other spaces.
    """
    return GymnasiumTeam(registered_env(id, arguments, render_mode), max_cycles)


def registered_env(id: str, arguments: Mapping[str, Any] | None, render_mode: str | None) -> gym.Env[Any, Any]:
    """Make an environment as `parallel_env` does, but no team of it; raises ConfigInvalid."""
    module, _, name = id.rpartition(":")
    given = dict(arguments or {}) if render_mode is None else {**(arguments or {}), "render_mode": render_mode}
    try:
        if module:
            import_module(module)
        spec = copy.deepcopy(gym.spec(name))
        # Not as arguments of gymnasium.make, which keeps some for itself, such as max_episode_steps.
        spec.kwargs.update(given)
        # The checker would warn of rewards that are lists.
        return gym.make(spec, disable_env_checker=True)
    except (gym.error.Error, ModuleNotFoundError) as error:
        raise ConfigInvalid([f"gymnasium cannot make {id!r}: {error}"]) from error
    except (ImportError, TypeError) as error:
        raise ConfigInvalid([f"gymnasium cannot make {id!r}: {error}{own_lines(error)}"]) from error


class GridPicture:
    """A picture of a grid, for things in its cells or between them; `margin`: pixels to the cell's border."""

    def __init__(self, rows: int, columns: int) -> None:
        from PIL import Image, ImageDraw  # late: only pictures need it

        self._image = Image.new("RGB", (columns * _CELL + 1, rows * _CELL + 1), _GROUND)
        self._draw = ImageDraw.Draw(self._image)
        for at in range(max(rows, columns) + 1):
            self._draw.line((0, at * _CELL, columns * _CELL, at * _CELL), _LINE)
            self._draw.line((at * _CELL, 0, at * _CELL, rows * _CELL), _LINE)

    def square(self, row: float, column: float, color: tuple[int, int, int], margin: int = 3) -> None:
        """Draw a square with round corners."""
        self._draw.rounded_rectangle(_inside(row, column, margin), 6, color)

    def disc(self, row: float, column: float, color: tuple[int, int, int], margin: int = 3) -> None:
        """Draw a disc."""
        self._draw.ellipse(_inside(row, column, margin), color)

    def text(self, row: float, column: float, text: object) -> None:
        """Write into a cell."""
        middle = (column + 0.5) * _CELL, (row + 0.5) * _CELL
        self._draw.text(middle, str(text), fill=_TEXT, anchor="mm", font_size=16)

    def array(self) -> Any:
        """Return the picture, uint8 [height, width, 3]."""
        return np.asarray(self._image)


def _inside(row: float, column: float, margin: int) -> tuple[float, float, float, float]:
    left, top = column * _CELL, row * _CELL
    return left + margin, top + margin, left + _CELL - margin, top + _CELL - margin


class GridTeam(GymnasiumTeam):
    """The registered environment `id` with `arguments`, all of whose agents end at once.

    In the mode `rgb_array`, a subclass draws the picture; the state is all agents' observations, concatenated.
    """

    def __init__(self, id: str, arguments: Mapping[str, Any], max_cycles: int | None, render_mode: str | None) -> None:
        super().__init__(registered_env(id, arguments, None if render_mode == _PICTURE else render_mode), max_cycles)
        modes = dict.fromkeys([*self.metadata.get("render_modes", ()), _PICTURE])
        self.metadata = {**self.metadata, "render_modes": list(modes)}
        self.render_mode = render_mode
        width = sum(spaces.flatdim(self.observation_space(agent)) for agent in self.possible_agents)
        self.state_space = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self._seen: Mapping[str, Any] = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self._seen, infos = super().reset(seed, options)
        return self._seen, infos

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self._seen, *rest = super().step(actions)
        return self._seen, *rest

    def state(self) -> Array:
        agents = self.possible_agents
        rows: list[Any] = [spaces.flatten(self.observation_space(agent), self._seen[agent]) for agent in agents]
        return np.concatenate(rows).astype(np.float32)

    @abstractmethod
    def draw(self) -> GridPicture:
        """Return a picture of the state."""

    def render(self) -> Any:
        return self.draw().array() if self.render_mode == _PICTURE else super().render()
