"""Environments of both kinds that play a script; whatever they show, pay and allow is a fingerprint of the moment.

The moment is the episode's seed, how often the environment was stepped, and every action so far: a wrong action, a
swapped row or a look at the wrong time shows in all that follows.
"""

from __future__ import annotations

from typing import ClassVar
from zlib import crc32

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.random import key
from tests.sampling.fingerprints import SPOILING, fingerprint, overwrite, spoiled
from tests.sampling.scripts import BOTH, JOIN, LINGER, STAY, TERMINATE, TRUNCATE, VANISH, VANISH_SEEN, Script

STATE_SPACE = spaces.Box(-1, 1, (2, 2), np.float64)


MIXED = (0, 1, True, -0.1, np.float32(0.1), np.float64(1e9), np.int64(-2), np.bool_(True), np.array([0.5]))
PAYERS = {
    "quarters": lambda number: (0.0, 0.0, 0.25, -0.5, 1.0, 2.75)[number % 6],
    "floats": lambda number: 0.0 if number % 3 == 0 else float(np.tan(number % 1571 / 1000)),
    "whole": lambda number: number % 7 - 3,
    "single": lambda number: np.float32(number % 1000 / 997),
    "mixed": lambda number: MIXED[number % 8],
}

WRONG_REWARDS = {"reward is nan": np.nan, "reward is infinite": -np.inf, "reward is a word": "much"}


class Built:
    """The common part of both kinds: the moment, and the values computed from it."""

    metadata: ClassVar = {"name": "built_v0"}
    render_mode = None

    def __init__(self, script: Script) -> None:
        self.script, self.names = script, script.agents
        if "undeclared" not in script.habits:
            self.possible_agents = list(self.names)
        self._observation_spaces = {agent: script.kind(agent).observation_space() for agent in self.names}
        self.state_space = STATE_SPACE
        self.agents = []
        self._shown, self._told = [], []  # what was handed out: observations, and masks in infos
        self.broken, self.misshown, self.misled = False, set(), set()

    def observation_space(self, agent):
        return self._observation_spaces[agent]

    def action_space(self, agent):
        return self.script.kind(agent).action_space()

    def does(self, habit):
        return habit in self.script.habits

    def begin(self, seed):
        self.seed, self.moves, self.t, self.past = seed or 0, 0, 0, 0
        self.course = self.script.courses[self.seed % len(self.script.courses)]
        present = {agent for agent, here in zip(self.names, self.course.present, strict=True) if here}
        present |= set() if self.seed else self.script.anchors()
        self.agents = [agent for agent in self.names if agent in present] or self.names[:1]
        self.known = set(self.agents)
        self.reuse(self._shown, self._told)

    def breaks(self, *what):
        """Whether one of `what` goes wrong now."""
        wrong = self.script.breaks
        now = wrong is not None and wrong.what in what and wrong.moves == self.moves
        now = now and bool(self.seed) and (self.seed >> 3) % wrong.every == 0
        self.broken = self.broken or now
        return now

    def number(self, *what):
        """A number for `what` at this moment."""
        return key(self.seed, self.moves, self.past, *(crc32(str(part).encode()) for part in what))

    def chance(self, probability, *what):
        return self.number(*what) < probability * 2**64

    def take(self, actions):
        for agent, action in actions.items():
            space, mask = self.action_space(agent), self.mask(agent)
            assert space.contains(action), f"{agent} took {action!r} of {space}"
            assert mask is None or mask[action - space.start], f"{agent} took {action!r}, which {mask} forbids"
        for agent, action in actions.items():
            self.past = key(self.past, crc32(agent.encode()), crc32(np.ascontiguousarray(action).tobytes()))

    def reuse(self, *handed):
        """Uses the arrays that were handed out for something else."""
        for arrays in handed:
            if self.does("reuses_arrays"):
                for number, (space, array) in enumerate(arrays):
                    overwrite(array, fingerprint(space, key(self.moves, number)))
            arrays.clear()

    def mask(self, agent, dead=False):
        kind = self.script.kind(agent)
        self.misled.discard(agent)
        at_times = kind.masks == "info" and self.moves and self.does("masks_at_times")
        if kind.masks == "none" or (at_times and self.chance(0.4, "no mask", agent)):
            return None
        mask = fingerprint(spaces.MultiBinary(kind.mask_space().shape[0]), self.number("mask", agent))
        mask[self.number("legal", agent) % len(mask)] = 1
        if not dead and self.chance(0.6, "illegal", agent) and self.breaks("nothing is legal"):
            self.misled.add(agent)
            return np.zeros_like(mask)
        return np.zeros_like(mask) if dead and self.does("blank_final_masks") else mask

    def see(self, agent, dead=False):
        space = self.observation_space(agent)
        observation = fingerprint(space, self.number("see", agent))
        self.misshown.discard(agent)
        if self.script.kind(agent).masks in ("alone", "beside"):
            observation["action_mask"] = self.mask(agent, dead)
        if self.chance(0.6, "wrong", agent):
            if self.breaks("seeing raises"):
                raise RuntimeError("it fogged up")
            wrong = spoiled(space, observation, self.script.breaks.what) if self.breaks(*SPOILING) else None
            if wrong is not None:
                self.misshown.add(agent)
                return wrong
        self._shown.append((space, observation))
        return observation

    def info(self, agent, dead=False):
        info = {"extra": object()} if self.does("extra_keys") else {}
        kind = self.script.kind(agent)
        mask = self.mask(agent, dead) if kind.masks == "info" else None
        if mask is not None:
            info["action_mask"] = mask
            self._told.append((kind.mask_space(), mask))
        return info

    def pay(self, agent):
        for what, wrong in WRONG_REWARDS.items():
            if self.chance(0.6, "wrong pay", agent) and self.breaks(what):
                return wrong
        return PAYERS[self.script.pay](self.number("pay", agent))

    def payments(self, agents, owed=()):
        """The rewards of `agents`, and with some habits of others; if it breaks, one of the `owed` gets none."""
        paid = list(agents)
        if owed and self.breaks("somebody is not paid"):
            paid.remove(owed[self.number("unpaid") % len(owed)])
        if self.does("pays_the_absent"):
            paid += [a for a in self.names if a in self.known and a not in agents and self.chance(0.5, "absent", a)]
        return {agent: self.pay(agent) for agent in self.shuffled(paid)}

    def shuffled(self, agents):
        return sorted(agents, key=lambda a: self.number("order", a)) if self.does("reorders") else list(agents)

    def events(self, living):
        """The events of each of the `living` at the next step, and the agents that join."""
        events = dict(zip(self.names, self.course.events(self.t), strict=True))
        self.t += 1
        if self.t == self.course.steps or (self.does("fickle") and self.past % 7 == 0):
            ends = {agent: TERMINATE if self.chance(0.5, "end", agent) else TRUNCATE for agent in living}
            return {agent: ends[agent] if events[agent] in (STAY, JOIN) else events[agent] for agent in living}, []
        absent = [agent for agent in self.names if agent not in self.agents and events[agent] == JOIN]
        joined = [agent for agent in absent if agent not in self.known or self.does("returns")]
        self.known.update(joined)
        return {agent: events[agent] for agent in living}, joined

    def state(self):
        state = fingerprint(STATE_SPACE, self.number("state"))
        self._shown.append((STATE_SPACE, state))
        return state


class BuiltParallel(Built, ParallelEnv):
    def reset(self, seed=None, options=None):
        self.begin(seed)
        self._lingering = []
        everybody = self.shuffled(self.agents)
        if self.breaks("reset raises"):
            raise RuntimeError("it does not begin")
        return {a: self.see(a) for a in everybody}, {a: self.info(a) for a in everybody}

    def step(self, actions):
        living = [agent for agent in self.agents if agent not in self._lingering]
        assert list(actions) == living
        if self.breaks("step raises"):
            raise RuntimeError("a wheel came off")
        self.take(actions)
        self.reuse(self._shown, self._told)
        self.moves += 1
        events, joined = self.events(living)
        marked = [agent for agent in living if events[agent] not in (VANISH, VANISH_SEEN)]
        terminations = {agent: events[agent] in (TERMINATE, BOTH, LINGER) for agent in marked}
        truncations = {agent: events[agent] in (TRUNCATE, BOTH) for agent in marked}
        stay = [agent for agent in marked if not (terminations[agent] or truncations[agent])]
        self._lingering = [agent for agent in living if events[agent] == LINGER]
        self.agents = self.shuffled([*stay, *joined, *self._lingering])
        told = [] if self.does("terse") else joined
        terminations = self.flags(terminations | dict.fromkeys(told, False))
        truncations = self.flags(truncations | dict.fromkeys(told, False))
        observations, infos = self.show(living, stay, joined, events)
        if not self.does("undeclared") and self.breaks("somebody is undeclared"):
            self.agents = [*self.agents, "stranger"]
        return observations, self.payments([*living, *told], marked), terminations, truncations, infos

    def flags(self, marks):
        if self.does("terse"):
            return {agent: mark for agent, mark in marks.items() if mark}
        return {agent: np.bool_(mark) for agent, mark in marks.items()} if self.does("numpy_flags") else marks

    def show(self, living, stay, joined, events):
        ended = [agent for agent in living if agent not in stay and events[agent] != VANISH]
        ended = [agent for agent in ended if not (self.does("no_last_words") and self.chance(0.5, "last", agent))]
        seen = {agent: self.see(agent, agent in ended) for agent in self.shuffled([*stay, *ended, *joined])}
        infos = {agent: self.info(agent, agent in ended) for agent in seen}
        if self.does("terse"):
            infos = {agent: info for agent, info in infos.items() if info}
        extra = {"common": None} if self.does("extra_keys") else {}
        return seen | extra, infos | extra


class BuiltAEC(Built, AECEnv):
    def reset(self, seed=None, options=None):
        self.begin(seed)
        dead = [a for a in self.agents[1:] if self.does("dead_from_the_start") and self.chance(0.3, "dead", a)]
        self.terminations = {agent: agent in dead and self.chance(0.5, "which", agent) for agent in self.agents}
        self.truncations = {agent: agent in dead and not self.terminations[agent] for agent in self.agents}
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.infos = {agent: self.info(agent) for agent in self.agents}
        self._skip_agent_selection = None
        if self.breaks("reset raises"):
            raise RuntimeError("it does not begin")
        self.agent_selection = self.agents[self.number("first") % len(self.agents)]

    def is_dead(self, agent):
        return self.terminations[agent] or self.truncations[agent]

    def observe(self, agent):
        self.reuse(self._shown)
        return self.see(agent, self.is_dead(agent))

    def step(self, action):
        if self.breaks("step raises"):
            raise RuntimeError("a wheel came off")
        agent = self.agent_selection
        if self.is_dead(agent):
            self.dead_step(agent, action)
        else:
            self.take({agent: action})
            self._cumulative_rewards[agent] = 0
            self.turn()
        self.reuse(self._shown, self._told)
        for other, reward in self.rewards.items():
            if other in self._cumulative_rewards and not isinstance(reward, str):
                self._cumulative_rewards[other] += reward
        self.infos = {agent: self.info(agent, self.is_dead(agent)) for agent in self.agents}
        if not self.does("undeclared") and self.breaks("somebody is undeclared"):
            self.agents = [*self.agents, "stranger"]
        if self.agents and self.agent_selection not in self.agents:
            self.agent_selection = self.agents[self.number("next") % len(self.agents)]

    def dead_step(self, agent, action):
        self.moves += 1
        self.rewards.setdefault(agent, 0)
        self._was_dead_step(action)
        if self.does("pays_the_dying"):
            self.rewards = self.payments(self.agents)

    def turn(self):
        self.moves += 1
        turn = self.course.turn(self.t)
        events, joined = self.events([agent for agent in self.agents if not self.is_dead(agent)])
        self.add(joined)
        for agent, event in events.items():
            if event in (VANISH, VANISH_SEEN):
                self.remove(agent)
            else:
                self.terminations[agent] = event in (TERMINATE, BOTH, LINGER)
                self.truncations[agent] = event in (TRUNCATE, BOTH)
        self.rewards = self.payments(self.agents, [agent for agent in events if agent in self.agents])
        if self.agents:
            self.agent_selection = self.agents[turn % len(self.agents)]
            if self.does("deads_first"):
                self._deads_step_first()

    def add(self, joined):
        self.agents = self.shuffled([*self.agents, *joined])
        for agent in joined:
            self.terminations[agent] = self.truncations[agent] = False
            self._cumulative_rewards[agent] = 0

    def remove(self, agent):
        self.agents = [other for other in self.agents if other != agent]
        for table in (self._cumulative_rewards, self.terminations, self.truncations):
            del table[agent]
