"""A batched environment of two agents that count env steps, and workers that step it."""

import numpy as np
from gymnasium import spaces

from marlflow.env import BatchedStep
from marlflow.policy.scripted import RandomActor
from tests.sampling.workers import rollout_worker

LENGTH = 6
AGENTS = ["a_0", "a_1"]


class Counters:
    """Two agents that see the env step; reward 1 each; an episode has LENGTH steps. `change` is called in a step."""

    turn_based = False
    metadata = {"name": "counters"}  # noqa: RUF012
    groups = {"a": AGENTS}  # noqa: RUF012

    def __init__(self, num_envs, change=None, resets=None):
        self.num_envs, self.t, self.calls = num_envs, np.zeros(num_envs, np.int64), 0
        self.change, self.resets = change, resets if resets is not None else []

    def observation_space(self, agent):
        return spaces.Box(0, 100, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def see(self):
        return {"a": np.repeat(self.t[:, None, None], 2, axis=1).astype(np.float32)}

    def reset(self, envs, seeds):
        self.resets.append((envs.tolist(), seeds.tolist()))
        self.t[envs] = 0
        return BatchedStep(self.see())

    def stepped(self):
        over = np.repeat((self.t >= LENGTH)[:, None], 2, axis=1)
        return BatchedStep(self.see(), {"a": np.ones((self.num_envs, 2))}, {"a": over}, {"a": np.zeros_like(over)})

    def step(self, actions):
        self.calls += 1
        self.t += 1
        made = self.stepped()
        if self.change is not None:
            self.change(self, made)
        return made

    def close(self):
        pass


def batched_worker(make_batched, policies=("all", "all"), num_envs=3, actor=RandomActor, **settings):
    """A worker whose policies choose at random; `policies` says which plays each agent."""
    mapping = dict(zip(AGENTS, policies, strict=True))
    actors = {policy: actor(spaces.Discrete(2)) for policy in policies}
    return rollout_worker(None, range(num_envs), mapping, actors, seed=3, make_batched=make_batched, **settings)
