"""One environment of a batched environment as a PettingZoo environment, for tools that are made for these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.arrays import Array
from marlflow.env.adapter import StepResult
from marlflow.env.batched.adapter import BatchedAdapter
from marlflow.env.batched.protocol import BatchedEnv, info_keys
from marlflow.env.episode_location import EpisodeLocation, environment_name
from marlflow.env.masking import MASK


class _Single:
    """The common part of both forms; `env` has one environment. Action masks are in infos."""

    def __init__(self, env: BatchedEnv) -> None:
        self._adapter = BatchedAdapter(env, EpisodeLocation(environment_name(env), 0))
        self.metadata = {"is_parallelizable": False, "render_modes": [], **getattr(env, "metadata", {})}
        self.possible_agents = list(self._adapter.agents)
        self.agents: list[str] = []
        self.render_mode = None
        self._result = StepResult()
        self._seed = 0
        # PettingZoo demands the same objects on every call.
        self._observation_spaces = {agent: env.observation_space(agent) for agent in self.possible_agents}
        self._action_spaces = {agent: env.action_space(agent) for agent in self.possible_agents}
        if (space := self._adapter.state_space()) is not None:
            self.state_space = space

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of `agent`, without action mask."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of `agent`."""
        return self._action_spaces[agent]

    def state(self) -> Array:
        """Return the global state; raises NotImplementedError if there is none."""
        if self._adapter.state_space() is None:
            raise NotImplementedError("this environment has no state()")
        return self._adapter.state()

    def _begin(self, seed: int | None) -> None:
        # Without a seed, each episode differs, as in gymnasium.
        self._seed = self._seed + 1 if seed is None else seed
        self._result = self._adapter.reset(self._seed)
        self.agents = list(self.possible_agents)

    def _seen(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the observations and masks of the agents that decide, by agent."""
        result, names = self._result, [self.possible_agents[slot] for slot in self._result.deciding]
        masks = {
            name: mask.astype(np.int8) for name, mask in zip(names, result.masks, strict=False) if mask is not None
        }
        return dict(zip(names, result.observations, strict=True)), masks

    def close(self) -> None:
        """Close the environment."""
        self._adapter.close()


class SingleParallel(_Single, ParallelEnv[str, Any, Any]):
    """One environment in which all living agents act."""

    def __init__(self, env: BatchedEnv) -> None:
        super().__init__(env)
        self._adapter.info_keys = info_keys(env)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        del options
        self._begin(seed)
        observations, masks = self._seen()
        return observations, {agent: {MASK: masks[agent]} if agent in masks else {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        before = self.agents
        self._result = result = self._adapter.act([actions[agent] for agent in before])
        rewards = {self.possible_agents[slot]: reward for slot, reward in enumerate(result.rewards)}
        ends = {self.possible_agents[ending.slot]: ending for ending in result.ended}
        observations, masks = self._seen()
        observations |= {agent: ending.observation for agent, ending in ends.items()}
        masks |= {agent: ending.mask.astype(np.int8) for agent, ending in ends.items() if ending.mask is not None}
        self.agents = [agent for agent in before if agent not in ends]
        return (
            {agent: observations[agent] for agent in before},
            {agent: reward for agent, reward in rewards.items() if agent in before or reward},
            {agent: agent in ends and ends[agent].terminated for agent in before},
            {agent: agent in ends and ends[agent].truncated for agent in before},
            self._infos(before, masks),
        )

    def _infos(self, acted: Sequence[str], masks: Mapping[str, Array]) -> dict[str, dict[str, Any]]:
        infos: dict[str, dict[str, Any]] = {agent: {MASK: masks[agent]} if agent in masks else {} for agent in acted}
        # Empty if the environment has none.
        for agent, info in zip(self.possible_agents, self._result.infos, strict=False):
            given = dict(info or {})
            if agent in infos or any(given.values()):
                infos[agent] = {**given, **infos.get(agent, {})}
        return infos


class SingleAEC(_Single, AECEnv[str, Any, Any]):
    """One environment in which agents take turns."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        del options
        self._begin(seed)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._final: dict[str, Any] = {}
        self._final_masks: dict[str, Any] = {}
        self._final_infos: dict[str, Any] = {}
        self._observations: dict[str, Any] = {}
        self._show()

    def _show(self) -> None:
        observations, masks = self._seen()
        masks |= self._final_masks
        self._observations = {**self._observations_before(), **observations, **self._final}
        self.infos = {
            agent: {**self._final_infos.get(agent, {}), **({MASK: masks[agent]} if agent in masks else {})}
            for agent in self.agents
        }
        self._skip_agent_selection = None
        if observations:
            self.agent_selection = next(iter(observations))
        # Agents that ended step first, and then, in a game that continues, who acts next.
        self._deads_step_first()

    def _observations_before(self) -> dict[str, Any]:
        before = self._observations
        return {agent: before.get(agent, space.sample() * 0) for agent, space in self._observation_spaces.items()}

    def observe(self, agent: str) -> Any:
        return self._observations[agent]

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._result = self._adapter.act([action])
        self.rewards = {name: self._result.rewards[self.possible_agents.index(name)] for name in self.agents}
        for ending in self._result.ended:
            name = self.possible_agents[ending.slot]
            self.terminations[name], self.truncations[name] = ending.terminated, ending.truncated
            self._final[name], self._final_infos[name] = ending.observation, ending.info
            if ending.mask is not None:
                self._final_masks[name] = ending.mask.astype(np.int8)
        self._show()
        self._accumulate_rewards()


def as_pettingzoo(env: Any) -> Any:
    """Return a BatchedEnv of one environment as a ParallelEnv, or as an AECEnv if it is turn-based; others as they are.

    In the AEC form, an agent keeps the observation of its last turn while other agents act.
    """
    if isinstance(env, AECEnv | ParallelEnv) or not isinstance(env, BatchedEnv):
        return env
    return SingleAEC(env) if env.turn_based else SingleParallel(env)
