"""Environments that note every action, by the seed of their episode."""

from __future__ import annotations

import importlib
from collections import defaultdict
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper

PLAYED: dict[int, list[tuple[str, list[float]]]] = defaultdict(list)
"""The agents and their actions in order, by the seed of the reset."""


def _note(seed: int, agent: str, action: Any) -> None:
    PLAYED[seed].append((agent, np.asarray(action, np.float64).ravel().tolist()))


class _Parallel(BaseParallelWrapper):  # type: ignore[type-arg]
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._seed = seed or 0
        return super().reset(seed=seed, options=options)

    def step(self, actions: dict[str, Any]) -> Any:
        for agent in self.env.agents:
            _note(self._seed, agent, actions[agent])
        return super().step(actions)


class _TurnBased(BaseWrapper):  # type: ignore[type-arg]
    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._seed = seed or 0
        super().reset(seed=seed, options=options)

    def step(self, action: Any) -> None:
        if action is not None:
            _note(self._seed, self.env.agent_selection, action)
        super().step(action)


def make(factory: str, render_mode: str | None = None, **arguments: Any) -> Any:
    """Make the environment at an import path, and watch it."""
    module, _, name = factory.rpartition(".")
    changes = {} if render_mode is None else {"render_mode": render_mode}
    env = getattr(importlib.import_module(module), name)(**arguments, **changes)
    return _TurnBased(env) if isinstance(env, AECEnv) else _Parallel(env)


class Spread(ParallelEnv):  # type: ignore[type-arg]
    """Three agents with actions of unusual spaces: Discrete from 5, MultiDiscrete, and a float64 Box."""

    metadata: ClassVar[Any] = {"name": "spread", "render_modes": []}
    possible_agents: ClassVar[Any] = ["number", "pair", "arm"]

    def observation_space(self, agent: str) -> Any:
        seen = spaces.Box(-1.0, 1.0, (3,), np.float32)
        return spaces.Dict({"at": seen, "kind": spaces.Discrete(2, start=1)}) if agent == "arm" else seen

    def action_space(self, agent: str) -> Any:
        return {
            "number": spaces.Discrete(4, start=5),
            "pair": spaces.MultiDiscrete([2, 3]),
            "arm": spaces.Box(-0.3, 0.7, (2,), np.float64),
        }[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._random, self._t = list(self.possible_agents), np.random.default_rng(seed), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> Any:
        seen = {agent: self._random.uniform(-1, 1, 3).astype(np.float32) for agent in self.possible_agents}
        return {**seen, "arm": {"at": seen["arm"], "kind": np.int64(1 + self._t % 2)}}

    def step(self, actions: dict[str, Any]) -> Any:
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), (agent, action)
        self._t += 1
        ends = dict.fromkeys(self.agents, self._t == 7)
        rewards = {"number": float(actions["number"]), "pair": float(actions["pair"][1]), "arm": actions["arm"][0]}
        infos = {agent: {} for agent in self.agents}
        self.agents = [] if self._t == 7 else self.agents
        return self._seen(), rewards, dict(ends), dict.fromkeys(ends, False), infos
