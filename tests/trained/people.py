"""Teams and people for games: policies that draw legal actions, and lines that are typed in advance."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

import marlflow as mf
from marlflow.base.random import episode_seed
from marlflow.env.opening import open_adapter


class Typed:
    """Lines in order; None is one that does not come in time, and their end is the end of the input."""

    def __init__(self, *lines):
        self.lines, self.timeouts = list(lines), []

    def read(self, timeout_s):
        self.timeouts.append(timeout_s)
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)


class DrawnTeam:
    """Plays with legal actions that are drawn by the seed, the agent, and how often it decided."""

    def __init__(self, factory, arguments=None, policies=("policy",), run_dir="runs/drawn"):
        self.experiment = SimpleNamespace(league=None, env=mf.Env(factory, arguments or {}))
        self.factory, self.arguments = factory, arguments or {}
        self.run_dir, self.checkpoint, self.policies = Path(run_dir), 7, policies
        self.adapter = open_adapter(self.make_env())
        self.agents = list(self.adapter.agents)
        self.asked = []

    def __getitem__(self, name):
        if name not in (*self.policies, "random"):
            raise mf.ConfigInvalid([f"there is no policy {name!r}"])
        return SimpleNamespace(name=name, agents=tuple(self.agents))

    def make_env(self, render_mode=None):
        return self.played_env(render_mode)

    def played_env(self, render_mode=None):
        given = {} if render_mode is None else {"render_mode": render_mode}
        return self.factory(**self.arguments, **given)

    def reset(self, seed=None, episode=0):
        self.generator = np.random.default_rng([seed, episode])
        return episode_seed(seed, 9, episode)

    def act(self, agent, observation, info, mode, policy):
        self.asked.append((agent, policy, mode))
        space = self.adapter.action_space(agent)
        mask = info.get("action_mask")
        if mask is None:
            space.seed(int(self.generator.integers(2**31)))
            return space.sample()
        return self.generator.choice(np.flatnonzero(mask))

    def player(self, agent, policy=None):
        return self[policy or self.policies[0]]
