"""Small environments with a property that a trial should find."""

import copy
import random
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

from marlflow.env.games.cartpole_team import CartPoleTeam

_SEEN = spaces.Box(-1, 1, (2,), np.float32)
_MOVES = spaces.Discrete(3)


class Knockout(AECEnv):
    """p_0 moves first; on move 0 both are out at once, and p_1 has lost 0.1 without a single decision."""

    metadata: ClassVar = {"name": "knockout"}
    possible_agents: ClassVar = ["p_0", "p_1"]
    render_mode = None

    def observation_space(self, agent):
        return _SEEN

    def action_space(self, agent):
        return _MOVES

    def observe(self, agent):
        return np.full(2, self.t / 10, np.float32)

    def reset(self, seed=None, options=None):
        self.t = 0
        self.agents = list(self.possible_agents)
        self.agent_selection = "p_0"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self.t += 1
        self._cumulative_rewards[agent] = 0.0
        over = (agent == "p_0" and action == 0) or self.t == 4
        self.rewards = {"p_0": 0.1, "p_1": -0.1} if over else dict.fromkeys(self.agents, 0.0)
        if over:
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = "p_1" if agent == "p_0" else "p_0"


class Revived(ParallelEnv):
    """Agent b ends with its second decision, is away for an env step, and comes back; ten env steps in all."""

    metadata: ClassVar = {"name": "revived"}
    possible_agents: ClassVar = ["a", "b"]

    def observation_space(self, agent):
        return _SEEN

    def action_space(self, agent):
        return _MOVES

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, ["a", "b"]
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        is_over = self.t == 10
        ended = {agent: agent == "b" and self.t == 2 for agent in actions}
        self.agents = [] if is_over else ["a"] if self.t == 2 else ["a", "b"]
        told = [*actions, *(agent for agent in self.agents if agent not in actions)]
        seen = {agent: np.full(2, self.t / 10, np.float32) for agent in told}
        ends = {agent: ended.get(agent, False) for agent in told}
        return seen, dict.fromkeys(told, 1.0), ends, dict.fromkeys(told, is_over), {agent: {} for agent in told}

    def _seen(self):
        return {agent: np.zeros(2, np.float32) for agent in self.agents}


class Relay(ParallelEnv):
    """Declares nobody: a new runner comes every other env step, and the first one has gone two env steps later.

    Every third runner vanishes unmarked. Rewards are tenths, so that sums are rounded.
    """

    metadata: ClassVar = {"name": "relay"}
    render_mode = None

    def observation_space(self, agent):
        return _SEEN

    def action_space(self, agent):
        return _MOVES

    def _see(self):
        return {agent: np.zeros(2, np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.random = random.Random(seed)
        self.t = 0
        self.agents = ["runner_0"]
        return self._see(), {"runner_0": {}}

    def step(self, actions):
        self.t += 1
        rewards = {agent: self.random.randrange(10) / 10 for agent in self.agents}
        ended = dict.fromkeys(self.agents, False)
        seen = self._see()
        if self.t % 2 == 0:
            out = self.agents.pop(0) if len(self.agents) > 1 else None
            if out is not None and int(out.split("_")[1]) % 3 != 0:
                ended[out] = True
            self.agents.append(f"runner_{self.t // 2}")
        if self.t == 9:
            ended.update(dict.fromkeys(self.agents, True))
            self.agents = []
        seen.update(self._see())
        flags = {agent: ended.get(agent, False) for agent in seen}
        return seen, rewards, flags, dict.fromkeys(seen, False), {agent: {} for agent in seen}


class Strangers(ParallelEnv):
    """Declares nobody: three agents of one name, of which the first one sees less; rewards are faint."""

    metadata: ClassVar = {"name": "strangers"}
    render_mode = None

    def observation_space(self, agent):
        return _SEEN if agent == "cart_0" else _SEEN_BY_OTHERS

    def action_space(self, agent):
        return _MOVES

    def _all(self, value):
        return {f"cart_{number}": value for number in range(3)}

    def _see(self):
        return {agent: np.zeros(self.observation_space(agent).shape, np.float32) for agent in self._all(0)}

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self._all(0))
        return self._see(), self._all({})

    def step(self, actions):
        self.t += 1
        over = self.t == 4
        if over:
            self.agents = []
        return self._see(), self._all(1e-5), self._all(over), self._all(False), self._all({})


_SEEN_BY_OTHERS = spaces.Box(-1, 1, (3,), np.float32)


class ListedInfos(CartPoleTeam):
    """Its infos are lists."""

    def step(self, actions):
        *others, infos = super().step(actions)
        return *others, {agent: ["hit"] for agent in infos}


class PaidInArrays(CartPoleTeam):
    """Pays arrays of one number, as training takes them."""

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: np.array([reward]) for agent, reward in rewards.items()}, *rest


class Quits(CartPoleTeam):
    """Ends the process in place of an error."""

    def step(self, actions):
        raise SystemExit(0)


class ReturnsNothing(CartPoleTeam):
    """Its step does not return anything."""

    def step(self, actions):
        super().step(actions)


class Endless(CartPoleTeam):
    """Poles that fall are put up again."""

    def step(self, actions):
        observations, rewards, _, _, infos = super().step(actions)
        if len(self.agents) < len(self.possible_agents) or self._cycles == self.max_cycles:
            observations, infos = self.reset()
        no = dict.fromkeys(self.agents, False)
        return observations, rewards, no, no, infos


class Tires(CartPoleTeam):
    """Breaks down in its hundredth env step."""

    taken = 0

    def step(self, actions):
        self.taken += 1
        if self.taken == 100:
            raise RuntimeError("out of breath")
        return super().step(actions)


class Moody(CartPoleTeam):
    """Starts as it likes, whatever the seed."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        return super().reset(None, options)


class Outside(CartPoleTeam):
    """Shows what is outside its bounds."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        observations, infos = super().reset(seed, options)
        return {agent: seen + np.float32(1e9) for agent, seen in observations.items()}, infos


class Lingering(CartPoleTeam):
    """Lists its agents after their end, when it cannot be stepped."""

    over = False

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        self.over = False
        return super().reset(seed, options)

    def step(self, actions):
        assert not self.over
        observations, rewards, terminations, truncations, infos = super().step(actions)
        self.over = not self.agents
        self.agents = self.agents or list(terminations)
        return observations, rewards, terminations, truncations, infos


class Copies(CartPoleTeam):
    """Makes its spaces anew at each call."""

    def observation_space(self, agent):
        return copy.deepcopy(super().observation_space(agent))

    def action_space(self, agent):
        return copy.deepcopy(super().action_space(agent))


def copies_aec() -> AECEnv:
    env = parallel_to_aec(CartPoleTeam())
    env.action_space = lambda agent: spaces.Discrete(2)
    return env


class Drifting(CartPoleTeam):
    """Whose actions are more at each call."""

    calls = 2

    def action_space(self, agent):
        self.calls += 1
        return spaces.Discrete(self.calls)


class Forked(CartPoleTeam):
    """Each cart has pushes of its own."""

    def action_space(self, agent):
        return _TORQUE if agent == "cart_0" else super().action_space(agent)

    def step(self, actions):
        return super().step({agent: int(np.sum(action) > 0) for agent, action in actions.items()})


_TORQUE = spaces.Box(-1, 1, (2,), np.float32)


class Levers(CartPoleTeam):
    """Actions in which no algorithm learns."""

    def action_space(self, agent):
        return _LEVERS

    def step(self, actions):
        return super().step({agent: int(action[0]) for agent, action in actions.items()})


_LEVERS = spaces.Box(0, 1, (3,), np.int64)


class Compass(CartPoleTeam):
    """Actions of a kind that nobody can choose."""

    def action_space(self, agent):
        return _COMPASS


_COMPASS = spaces.Dict({"turn": spaces.Discrete(3)})


class Unpaid(CartPoleTeam):
    """Gives cart_1 no reward, not even 0."""

    def step(self, actions: dict[str, int]) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: reward for agent, reward in rewards.items() if agent != "cart_1"}, *rest


def unpaid_aec() -> AECEnv:
    """The same, as PettingZoo makes an AEC environment of it."""
    return parallel_to_aec(Unpaid())
