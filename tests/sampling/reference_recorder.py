"""A slow recorder that is obviously right: one environment, one agent at a time, plain lists, no adapter.

It says which rows there are, when each was decided and when it was complete; how fragments are cut follows from that.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marlflow.base.random import RowRandom, episode_seed, key
from tests.sampling.reference_rows import Row, Seen, Segment, Trajectory, as_row
from tests.sampling.row_actors import MEMORY_SHAPE, decide


class TooManyFaults(Exception):
    """More than this environment alone may have."""


class Spoiled(Exception):
    """The environment broke a rule without raising."""


# The end of a broken environment: it raised, gave something that is no number, or failed a check.
BREAKING = (Spoiled, RuntimeError, ValueError)


class Reference:
    """Plays one environment, collect after collect; `matchup(episode)` says which of `policies` plays each agent."""

    def __init__(self, make_env, seed, env_index, policies, matchup, greedy=False, tolerated=0):
        self.greedy, self.tolerated, self.faults = greedy, tolerated, 0
        self.make_env, self.seed, self.env_index, self.policies, self.matchup = (
            make_env,
            seed,
            env_index,
            policies,
            matchup,
        )
        self.trajectories, self.results, self.unattributed, self.lost, self.boundaries = [], [], [], [], [0]
        self.tick = self.env_steps = self.vanished = 0
        self.episode = -1
        self.playing = False
        self.open()

    def open(self):
        self.env = self.make_env()
        self.names = list(getattr(self.env, "possible_agents", ()))
        self.declared = bool(self.names)
        self.env.reset(seed=0)
        self.appear(self.env.agents)

    def collect(self, ticks, matchups):
        """`ticks` env steps, beginning at most `matchups` episodes (None: as many as it takes)."""
        self.unattributed.append({})
        self.lost.append([])
        last = None if matchups is None else self.episode + matchups
        if not self.playing:
            self.begin(last)
        for _ in range(ticks):
            self.tick += 1
            if self.playing:
                self.play(last)
        self.boundaries.append(self.tick)

    def play(self, last):
        self.env_steps += 1
        try:
            if isinstance(self.env, ParallelEnv):
                self.parallel_step()
            else:
                self.aec_turn()
        except BREAKING:
            if not getattr(self.env, "broken", False):
                raise
            self.give_up()
            self.begin(last)
            return
        if not self.running:
            self.results.append((self.episode, self.t_env, dict(self.issued), dict(self.matchup(self.episode))))
            self.begin(last)

    def begin(self, last):
        """The next episode, if there may be one; episodes whose reset breaks are discarded."""
        self.playing = False
        while not self.playing and (last is None or self.episode < last):
            self.episode += 1
            self.t_env = 0
            self.decisions, self.issued, self.running, self.ended, self.memory = {}, {}, {}, [], {}
            try:
                self.reset()
                self.playing = True
            except BREAKING:
                if not getattr(self.env, "broken", False):
                    raise
                self.give_up()

    def reset(self):
        result = self.env.reset(seed=episode_seed(self.seed, self.env_index, self.episode))
        self.appear(self.env.agents)
        if isinstance(self.env, ParallelEnv):
            self.lingering = set()
            for agent in self.env.agents:
                self.ask(agent, result[0][agent], result[1][agent])
        else:
            self.settle()

    def give_up(self):
        """The undelivered rows of the episode are lost, and so is the environment."""
        lost = 0
        for trajectory in [t for t in self.trajectories if t.episode == self.episode]:
            kept = [row for row in trajectory.rows if row.complete and row.complete <= self.boundaries[-1]]
            lost += len(trajectory.rows) - len(kept) if self.policies[trajectory.policy].recorded else 0
            trajectory.rows = kept
        self.lost[-1].append(lost)
        self.faults += 1
        if self.faults > self.tolerated:
            raise TooManyFaults
        self.open()

    def appear(self, agents):
        for agent in agents:
            if agent not in self.names:
                if self.declared:
                    raise Spoiled(agent)
                self.names.append(agent)
            if self.episode >= 0:
                self.issued.setdefault(agent, 0.0)

    def look(self, agent, observation, info):
        """A copy of the observation of `agent`, and its mask."""
        if agent in getattr(self.env, "misshown", ()) or agent in getattr(self.env, "misled", ()):
            raise Spoiled(agent)
        space, mask = self.env.observation_space(agent), None
        if isinstance(space, spaces.Dict) and "action_mask" in space.spaces:
            mask = observation["action_mask"]
            rest = {name: inner for name, inner in space.spaces.items() if name != "action_mask"}
            alone = list(rest) == ["observation"]
            space = rest["observation"] if alone else spaces.Dict(rest)
            observation = observation["observation"] if alone else {name: observation[name] for name in rest}
        elif "action_mask" in (info or {}):
            mask = info["action_mask"]
        state = np.array(self.env.state(), np.float32) if self.policies[self.policy_of(agent)].sees_state else None
        return Seen(as_row(space, observation), None if mask is None else np.array(mask, bool), state)

    def look_at_last(self, agent, observation, info):
        """As `look`, for an agent that ends; it is not called if its rows are not recorded."""
        trajectory = self.running.get(agent)
        if self.greedy or trajectory is None or not trajectory.rows or not self.policies[trajectory.policy].recorded:
            return None
        return self.look(agent, observation, info)

    def policy_of(self, agent):
        return self.matchup(self.episode)[agent]

    def remembering(self, agent, seen):
        """`seen` with the memory that `agent` has now, zero as long as it has not decided."""
        policy = self.policies[self.policy_of(agent)]
        memory, version = self.memory.get(agent, (np.zeros(MEMORY_SHAPE, np.float32), None))
        return seen._replace(memory=memory, version=version) if policy.remembers else seen

    def ask(self, agent, observation, info):
        """`agent` must decide next: its last row is complete."""
        trajectory = self.running.get(agent)
        if trajectory is None:
            trajectory = Trajectory(self.names.index(agent), self.episode, self.policy_of(agent))
            self.running[agent] = trajectory
            self.trajectories.append(trajectory)
        if trajectory.rows and trajectory.rows[-1].complete is None:
            trajectory.rows[-1].complete = self.tick
        trajectory.pending = self.remembering(agent, self.look(agent, observation, info))

    def decide(self, agent):
        """The action of `agent`, as its space has it."""
        trajectory, space = self.running[agent], self.env.action_space(agent)
        seen, trajectory.pending = trajectory.pending, None
        policy = self.policies[trajectory.policy]
        who = trajectory.slot if self.declared else key(*agent.encode())  # slots are given as agents come
        stream = key(self.seed, self.env_index, self.episode, who)
        t_agent = self.decisions.get(agent, 0)
        self.decisions[agent] = t_agent + 1
        random = RowRandom(np.array([stream], np.uint64), np.array([t_agent]))
        uniform = 0.0 if self.greedy else random.uniform()[0]
        decision = decide(space, policy.parameter, seen.obs, seen.mask, seen.memory, uniform)
        if seen.version is None:
            seen = seen._replace(version=policy.version)
        self.memory[agent] = (decision.memory, policy.version)
        row = Row(seen, decision.action, decision.logp, policy.version, self.t_env, t_agent, self.tick)
        trajectory.rows.append(row)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return np.asarray(decision.action + space.start, space.dtype)[()]
        return np.asarray(decision.action, space.dtype)

    def receive(self, agent, reward):
        reward = float(np.asarray(reward).item())
        if not isfinite(reward):
            raise Spoiled(agent)
        self.appear([agent] if reward else [])
        self.issued[agent] = self.issued.get(agent, 0.0) + reward
        trajectory = self.running.get(agent)
        if trajectory is not None and trajectory.rows and trajectory.rows[-1].complete is None:
            trajectory.rows[-1].reward += reward
        else:
            self.unattributed[-1].setdefault(self.policy_of(agent), []).append(reward)

    def end(self, agent, terminated, final):
        """`final`: its final observation, if there is one."""
        trajectory = self.running.pop(agent, None)
        if trajectory is None or not trajectory.rows:
            return
        last = trajectory.rows[-1]
        last.complete = self.tick
        trajectory.terminated, trajectory.truncated = terminated, not terminated
        trajectory.final = last.seen if final is None else self.remembering(agent, final)
        self.memory.pop(agent, None)
        self.ended.append(trajectory)

    def settled(self):
        """The step is done: what its ends leave behind is the state of now."""
        for trajectory in self.ended:
            if self.policies[trajectory.policy].sees_state:
                state = np.array(self.env.state(), np.float32)
                trajectory.final = trajectory.final._replace(state=state)
        self.ended = []

    def parallel_step(self):
        actions = {agent: self.decide(agent) for agent in self.env.agents if agent not in self.lingering}
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        self.t_env += 1
        self.appear(self.env.agents)
        for agent in actions:
            ended = terminations.get(agent, False) or truncations.get(agent, False)
            if agent not in rewards and (ended or agent in self.env.agents):
                raise Spoiled(agent)
        for agent, reward in rewards.items():
            self.receive(agent, reward)
        for agent in actions:
            terminated, truncated = terminations.get(agent, False), truncations.get(agent, False)
            if terminated or truncated or agent not in self.env.agents:
                self.vanished += not (terminated or truncated)
                info = infos.get(agent)
                final = self.look_at_last(agent, observations[agent], info) if agent in observations else None
                self.end(agent, terminated, final)
                self.lingering.add(agent)
        self.lingering &= set(self.env.agents)
        self.settled()
        for agent in self.env.agents:
            if agent not in self.lingering:
                self.ask(agent, observations[agent], infos.get(agent))

    def aec_turn(self):
        agent = self.env.agent_selection
        action = self.decide(agent)
        self.aec_step(action)
        self.t_env += 1
        self.settle()

    def aec_step(self, action):
        before = list(self.env.agents)
        dead = self.env.agent_selection if action is None else None
        owed = [agent for agent in before if not (self.env.terminations[agent] or self.env.truncations[agent])]
        self.env.step(action)
        for agent in owed:
            if dead is None and agent in self.env.agents and agent not in self.env.rewards:
                raise Spoiled(agent)
        for agent, reward in self.env.rewards.items():
            self.receive(agent, reward)
        self.appear(self.env.agents)
        for agent in before:
            if agent not in self.env.agents and agent != dead:
                self.vanished += 1
                self.end(agent, False, None)

    def settle(self):
        """Takes dead steps until a living agent must act, or no agent is left."""
        env = self.env
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            agent, terminated = env.agent_selection, env.terminations[env.agent_selection]
            final = self.look_at_last(agent, env.observe(agent), env.infos.get(agent))
            self.aec_step(None)
            self.end(agent, terminated, final)
        self.settled()
        if env.agents:
            agent = env.agent_selection
            self.ask(agent, env.observe(agent), env.infos.get(agent))

    def fragment(self, number, policy):
        """The segments of a policy in collect `number`, by the definition."""
        begin, end = self.boundaries[number], self.boundaries[number + 1]
        segments = []
        for trajectory in self.trajectories:
            done = [r for r in trajectory.rows if r.complete is not None and begin < r.complete <= end]
            if trajectory.policy != policy or not done:
                continue
            after = trajectory.rows[trajectory.rows.index(done[-1]) + 1 :]
            bootstrap = after[0].seen if after else trajectory.final or trajectory.pending
            ended = not after and trajectory.final is not None
            segments.append(Segment(trajectory, done, bootstrap, ended, done[0].decided <= begin))
        return segments
