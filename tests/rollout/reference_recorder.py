"""A slow recorder that is obviously right: one environment, one agent at a time, plain lists, no window.

It says which rows there are, when each was decided and when it was complete; how fragments are cut follows from that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from pettingzoo import ParallelEnv

from marlflow.base.random import RowRandom, episode_seed, key


@dataclass(eq=False)
class Row:
    obs: np.ndarray
    mask: np.ndarray | None
    action: int
    t_env: int
    t_agent: int
    decided: int  # the tick
    complete: int | None = None  # after that tick
    reward: float = 0.0


@dataclass(eq=False)
class Trajectory:
    """One agent in one episode, from its first decision to its end."""

    slot: int
    episode: int
    rows: list[Row] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False
    final_obs: np.ndarray | None = None
    final_mask: np.ndarray | None = None
    pending: tuple | None = None  # what it sees when it is asked, before it has decided


class Reference:
    """Plays `ticks` env steps of one copy with `choose(obs, mask, uniform) -> action`."""

    def __init__(self, env, seed, copy, choose, ticks):
        self.env, self.seed, self.copy, self.choose = env, seed, copy, choose
        self.names = env.possible_agents
        self.trajectories, self.unattributed, self.issued, self.returns = [], {}, {}, []
        self.tick = 0
        self.episode = -1
        while True:
            self.begin()
            play = self.parallel_step if isinstance(env, ParallelEnv) else self.aec_turn
            while env.agents:
                if self.tick == ticks:
                    return
                play()
            self.returns.append(dict(self.issued))

    def begin(self):
        self.episode += 1
        self.t_env = 0
        self.decisions = dict.fromkeys(self.names, 0)
        self.issued = dict.fromkeys(self.names, 0.0)
        self.running = {}
        result = self.env.reset(seed=episode_seed(self.seed, self.copy, self.episode))
        if isinstance(self.env, ParallelEnv):
            for agent in self.env.agents:
                self.ask(agent, result[0][agent], result[1][agent])
        else:
            self.settle()

    def split(self, observation, info):
        if isinstance(observation, dict):
            return np.array(observation["observation"]), np.array(observation["action_mask"], bool)
        mask = (info or {}).get("action_mask")
        return np.array(observation), None if mask is None else np.array(mask, bool)

    def ask(self, agent, observation, info):
        """`agent` must decide next: its last row is complete."""
        trajectory = self.running.get(agent)
        if trajectory is None:
            trajectory = self.running[agent] = Trajectory(self.names.index(agent), self.episode)
            self.trajectories.append(trajectory)
        if trajectory.rows and trajectory.rows[-1].complete is None:
            trajectory.rows[-1].complete = self.tick
        trajectory.pending = self.split(observation, info)

    def decide(self, agent):
        trajectory = self.running[agent]
        obs, mask = trajectory.pending
        trajectory.pending = None
        stream = key(self.seed, self.copy, self.episode, self.names.index(agent))
        t_agent = self.decisions[agent]
        self.decisions[agent] += 1
        uniform = RowRandom(np.array([stream], np.uint64), np.array([t_agent])).uniform()[0]
        action = self.choose(obs, mask, uniform)
        trajectory.rows.append(Row(obs, mask, action, self.t_env, t_agent, self.tick))
        return action + int(self.env.action_space(agent).start)

    def receive(self, agent, reward):
        self.issued[agent] += reward
        trajectory = self.running.get(agent)
        if trajectory is not None and trajectory.rows and trajectory.rows[-1].complete is None:
            trajectory.rows[-1].reward += reward
        else:
            self.unattributed[agent] = self.unattributed.get(agent, 0.0) + reward

    def end(self, agent, terminated, observation, info):
        trajectory = self.running.pop(agent, None)
        if trajectory is None or not trajectory.rows:
            return
        last = trajectory.rows[-1]
        last.complete = self.tick
        trajectory.terminated, trajectory.truncated = terminated, not terminated
        final = (last.obs, last.mask) if observation is None else self.split(observation, info)
        trajectory.final_obs, trajectory.final_mask = final

    def parallel_step(self):
        actions = {agent: self.decide(agent) for agent in self.env.agents}
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        self.tick += 1
        self.t_env += 1
        for agent, reward in rewards.items():
            self.receive(agent, reward)
        for agent in actions:
            terminated, truncated = terminations.get(agent, False), truncations.get(agent, False)
            if terminated or truncated or agent not in self.env.agents:
                self.end(agent, terminated, observations.get(agent), infos.get(agent))
        for agent in self.env.agents:
            self.ask(agent, observations[agent], infos[agent])

    def aec_turn(self):
        agent = self.env.agent_selection
        action = self.decide(agent)
        self.tick += 1
        self.t_env += 1
        self.aec_step(action)
        self.settle()

    def aec_step(self, action):
        before = list(self.env.agents)
        dead = action is None and self.env.agent_selection
        self.env.step(action)
        for agent, reward in self.env.rewards.items():
            self.receive(agent, reward)
        for agent in before:
            if agent not in self.env.agents and agent != dead:
                self.end(agent, False, None, None)

    def settle(self):
        env = self.env
        while env.agents:
            agent = env.agent_selection
            if not (env.terminations[agent] or env.truncations[agent]):
                return self.ask(agent, env.observe(agent), env.infos[agent])
            ending = env.terminations[agent], env.observe(agent), env.infos[agent]
            ending = ending[0], *self.split(ending[1], ending[2])
            self.aec_step(None)
            self.end(agent, ending[0], ending[1], {"action_mask": ending[2]} if ending[2] is not None else None)
        return None
