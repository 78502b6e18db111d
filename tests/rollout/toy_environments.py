"""Environments whose every event is drawn: deaths, late joiners, returns, vanishing, rewards to anybody, masks.

They reuse one observation buffer per agent, as some environments do, and pay in quarters, so that sums are exact.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

NUM_ACTIONS = 3


@dataclass(frozen=True)
class Toy:
    """How an environment behaves: chances per agent and step, and where masks come from."""

    num_agents: int = 3
    max_steps: int = 12
    terminate: float = 0.1
    truncate: float = 0.1
    vanish: float = 0.0
    join: float = 0.0
    masks: str = "none"  # none, observation or info
    start: int = 0


class Drawn:
    """What both kinds share: spaces, observations, masks, rewards."""

    metadata: ClassVar = {"name": "toy"}
    render_mode = None

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.possible_agents = [f"toy_{number}" for number in range(toy.num_agents)]
        self.agents = []
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        mask = spaces.Box(0, 1, (NUM_ACTIONS,), np.int8)
        wrapped = toy.masks == "observation"
        self._observation_space = spaces.Dict({"observation": box, "action_mask": mask}) if wrapped else box
        self._action_space = spaces.Discrete(NUM_ACTIONS, start=toy.start)
        self._buffers = {agent: np.zeros(3, np.float32) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self._observation_space

    def action_space(self, agent):
        return self._action_space

    def begin(self, seed):
        self.random = random.Random(seed)
        self.t = 0
        self.past = 0.0
        self.present = {agent: self.random.random() < 0.8 for agent in self.possible_agents}
        self.agents = [agent for agent in self.possible_agents if self.present[agent]] or self.possible_agents[:1]

    def chance(self, probability):
        return self.random.random() < probability

    def took(self, agent, action):
        assert self._action_space.contains(action), action
        self.past = (self.past * 3 + int(action) + 1) % 1009

    def mask(self, agent):
        mask = np.ones(NUM_ACTIONS, np.int8)
        mask[(self.t + self.possible_agents.index(agent)) % NUM_ACTIONS] = 0
        return mask

    def see(self, agent):
        buffer = self._buffers[agent]
        buffer[:] = self.possible_agents.index(agent), self.t, self.past
        return {"observation": buffer, "action_mask": self.mask(agent)} if self.toy.masks == "observation" else buffer

    def info(self, agent):
        return {"action_mask": self.mask(agent)} if self.toy.masks == "info" else {}

    def pay(self):
        return self.random.choice([0.0, 0.0, 0.25, -0.5, 1.0, 2.75])


class ToyParallel(Drawn, ParallelEnv):
    def reset(self, seed=None, options=None):
        self.begin(seed)
        return {a: self.see(a) for a in self.agents}, {a: self.info(a) for a in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents
        for agent, action in actions.items():
            self.took(agent, action)
        self.t += 1
        last = self.t >= self.toy.max_steps
        paid = [a for a in self.possible_agents if a in self.agents or self.chance(0.3)]
        rewards = {a: self.pay() for a in paid}
        vanished = [a for a in self.agents if self.chance(self.toy.vanish)]
        seen = [a for a in self.agents if a not in vanished or self.chance(0.5)]
        terminations = {a: self.chance(self.toy.terminate) for a in self.agents if a not in vanished}
        truncations = {a: last or self.chance(self.toy.truncate) for a in self.agents if a not in vanished}
        absent = [a for a in self.possible_agents if a not in self.agents]
        joined = [] if last else [a for a in absent if self.chance(self.toy.join)]
        stay = [a for a in terminations if not terminations[a] and not truncations[a]]
        infos = {a: self.info(a) for a in [*self.agents, *joined]} | {"common": {"extra": 1}}
        observations = {a: self.see(a) for a in [*seen, *joined]} | {"common": None}
        self.agents = stay + joined
        return observations, rewards, terminations, truncations, infos


class ToyAEC(Drawn, AECEnv):
    def reset(self, seed=None, options=None):
        self.begin(seed)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {a: self.info(a) for a in self.agents}
        self._skip_agent_selection = None
        self.agent_selection = self.random.choice(self.agents)

    def observe(self, agent):
        return self.see(agent)

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            if self.agents and self.chance(0.5):
                self.rewards = {a: self.pay() for a in self.agents}
                if self.chance(0.3):
                    self.rewards[agent] = self.pay()  # received after its end
            if self.agents and self.agent_selection not in self.agents:
                self.agent_selection = self.agents[0]
            return
        self.took(agent, action)
        self.t += 1
        if self.chance(self.toy.join):
            self.add(self.random.choice(self.possible_agents))
        for other in self.agents[:]:
            if len(self.agents) > 1 and self.chance(self.toy.vanish):
                self.remove(other)
        for other in self.agents:
            self.terminations[other] |= self.chance(self.toy.terminate)
            self.truncations[other] |= self.t >= self.toy.max_steps or self.chance(self.toy.truncate)
        self.rewards = {a: self.pay() for a in self.agents}
        self.infos = {a: self.info(a) for a in self.agents}
        self.agent_selection = self.random.choice(self.agents)
        if self.chance(0.5):
            self._deads_step_first()

    def add(self, agent):
        if agent not in self.agents:
            self.agents.append(agent)
            self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
            self.terminations[agent] = self.truncations[agent] = False
            self.infos[agent] = self.info(agent)

    def remove(self, agent):
        self.agents.remove(agent)
        for table in (self.rewards, self._cumulative_rewards, self.terminations, self.truncations, self.infos):
            del table[agent]
