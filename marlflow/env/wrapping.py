"""Wrapper classes behind `wrappers`, one for AEC and one for Parallel.

SuperSuit implements each for one API and converts the other, which processes every observation twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper

_Space = spaces.Space[Any]
# A function of an agent's observation or action to its replacement; a function of an agent to its new space.
Change = Callable[[Any, str], Any]
SpaceOf = Callable[[str], _Space]
# Observations, rewards, terminations, truncations, infos.
_Stepped = tuple[
    Mapping[str, Any], Mapping[str, float], Mapping[str, bool], Mapping[str, bool], Mapping[str, Mapping[str, Any]]
]
_OBSERVATION, _MASK = "observation", "action_mask"


def seen(env: Any, change: Change, space_of: SpaceOf) -> Any:
    """Change each observation, once."""
    return (_SeenAEC if isinstance(env, AECEnv) else _SeenParallel)(env, change, space_of)


def acting(env: Any, change: Change, space: _Space) -> Any:
    """Give all agents one action space, and convert each action to the agent's own."""
    return (_ActingAEC if isinstance(env, AECEnv) else _ActingParallel)(env, change, space)


def mask_apart(env: Any) -> Any:
    """Move `observation["action_mask"]` to `info["action_mask"]`, and unwrap the observation."""
    return (_MaskInInfoAEC if isinstance(env, AECEnv) else _MaskInInfoParallel)(env)


class _Seen:
    """Caches observation spaces: PettingZoo demands the same object on every call."""

    def __init__(self, env: Any, change: Change, space_of: SpaceOf) -> None:
        super().__init__(env)  # type: ignore[call-arg]
        self._change, self._space_of = change, space_of
        self._spaces: dict[str, _Space] = {agent: space_of(agent) for agent in getattr(env, "possible_agents", ())}

    def observation_space(self, agent: str) -> _Space:
        if agent not in self._spaces:
            self._spaces[agent] = self._space_of(agent)
        return self._spaces[agent]


class _SeenAEC(_Seen, BaseWrapper):
    def observe(self, agent: str) -> Any:
        observation = self.env.observe(agent)
        return None if observation is None else self._change(observation, agent)


class _SeenParallel(_Seen, BaseParallelWrapper):
    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._all_as_seen(observations), infos

    def step(self, actions: Mapping[str, Any]) -> _Stepped:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        return self._all_as_seen(observations), rewards, terminations, truncations, infos

    def _all_as_seen(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: self._change(observation, agent) for agent, observation in observations.items()}


class _Acting:
    def __init__(self, env: Any, change: Change, space: _Space) -> None:
        super().__init__(env)  # type: ignore[call-arg]
        self._change, self._space = change, space

    def action_space(self, agent: str) -> _Space:
        return self._space


class _ActingAEC(_Acting, BaseWrapper):
    def step(self, action: Any) -> None:
        self.env.step(None if action is None else self._change(action, self.env.agent_selection))


class _ActingParallel(_Acting, BaseParallelWrapper):
    def step(self, actions: Mapping[str, Any]) -> Any:
        return self.env.step({agent: self._change(action, agent) for agent, action in actions.items()})


class _MaskInInfoAEC(BaseWrapper):
    """Puts the mask of the agent to act into its info; its observation is computed once per turn."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._turn: tuple[str | None, Any] = (None, None)

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space(agent)[_OBSERVATION]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.env.reset(seed=seed, options=options)
        self._look()

    def step(self, action: Any) -> None:
        self.env.step(action)
        self._look()

    def _look(self) -> None:
        agent = self.env.agent_selection if self.env.agents else None
        observation = None if agent is None else self.env.observe(agent)
        if observation is None:
            self._turn = (None, None)
            return
        # Written into the inner environment's own dict, which is what adapters read.
        self.env.infos[agent][_MASK] = observation[_MASK]
        self._turn = (agent, observation[_OBSERVATION])

    def observe(self, agent: str) -> Any:
        if agent == self._turn[0]:
            return self._turn[1]
        observation = self.env.observe(agent)
        return None if observation is None else observation[_OBSERVATION]


class _MaskInInfoParallel(BaseParallelWrapper):
    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space(agent)[_OBSERVATION]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._apart(observations, infos)

    def step(self, actions: Mapping[str, Any]) -> _Stepped:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        observations, infos = self._apart(observations, infos)
        return observations, rewards, terminations, truncations, infos

    def _apart(self, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> tuple[Any, Any]:
        masks = {agent: {_MASK: observation[_MASK]} for agent, observation in observations.items()}
        without = {agent: observation[_OBSERVATION] for agent, observation in observations.items()}
        return without, {agent: {**infos.get(agent, {}), **masks.get(agent, {})} for agent in {**infos, **masks}}


class BlackDeath(BaseParallelWrapper):
    """Keeps ended agents, which observe zeros, until all have ended; then each ends as it did."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.agents: list[str] = []
        self._living: list[str] = []
        self._ended: dict[str, tuple[bool, bool]] = {}
        self._masked: dict[str, int] = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        self._living, self._ended = list(self.env.agents), {}
        self.agents = list(self._living)
        self._masked = {agent: len(info[_MASK]) for agent, info in infos.items() if _MASK in info}
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> _Stepped:
        before = list(self.env.agents)
        observations, rewards, terminations, truncations, infos = self.env.step(
            {agent: actions[agent] for agent in self._living}
        )
        for agent in self._living:
            ends = bool(terminations.get(agent)), bool(truncations.get(agent))
            if any(ends) or agent not in self.env.agents:
                # An agent that left without a flag counts as truncated.
                self._ended[agent] = ends if any(ends) else (False, True)
        if back := [agent for agent in self.env.agents if agent in self._ended and agent not in before]:
            raise RuntimeError(f"agent {back[0]!r} came back after its end, which black_death cannot show")
        self._living = [agent for agent in self.env.agents if agent not in self._ended]
        self.agents += [agent for agent in self._living if agent not in self.agents]
        present, over = list(self.agents), not self._living
        if over:
            self.agents = []
        ends_of = {agent: self._ended[agent] if over else (False, False) for agent in present}
        return (
            {agent: observations[agent] if agent in observations else self._black(agent) for agent in present},
            {agent: rewards.get(agent, 0.0) for agent in present},
            {agent: ends[0] for agent, ends in ends_of.items()},
            {agent: ends[1] for agent, ends in ends_of.items()},
            {agent: infos[agent] if agent in infos else self._nothing(agent) for agent in present},
        )

    def _black(self, agent: str) -> Any:
        space = self.env.observation_space(agent)
        return np.zeros(space.shape, space.dtype)

    def _nothing(self, agent: str) -> dict[str, Any]:
        """Return the info of an ended agent: if it had masks, one that allows everything."""
        return {_MASK: np.ones(self._masked[agent], np.int8)} if agent in self._masked else {}
