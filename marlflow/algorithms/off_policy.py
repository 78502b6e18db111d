"""Bases of off-policy algorithms: a replay buffer, a target network, and uniform actions before learning starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import LearningAlgorithm, cannot_act
from marlflow.base.problems import Problem
from marlflow.base.schedules import at_start
from marlflow.base.spaces import Spaces
from marlflow.policy.box import box_problem
from marlflow.policy.torso import TorsoConfig
from marlflow.policy.uniform_first import UniformFirst
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.sampling import Prioritized, Uniform


class OffPolicyAlgorithm(LearningAlgorithm):
    """Base of algorithms that learn from a replay buffer with a target network: a frozen dataclass derives from it.

    It gives `network()`, `losses()` and `plan()`, and has these fields; without `n_step` it is 1. Sizes are in agent
    steps of the policy.
    """

    has_target: ClassVar[bool] = True

    learning_starts_agent_steps: int
    replay_agent_steps: int
    discount: float
    n_step: int = 1

    def problems(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        """Return why it cannot be used here; learning has to start before the replay buffer is full."""
        found = super().problems(spaces, model)
        if self.learning_starts_agent_steps > self.replay_agent_steps:
            starts, holds = self.learning_starts_agent_steps, self.replay_agent_steps
            says = f"would start learning after {starts} agent steps, but its replay holds {holds}"
            found.append(Problem(says, self.name, remedy="raise replay_agent_steps"))
        return found

    def sampling(self) -> Uniform | Prioritized:
        """Return how rows are drawn from the replay buffer."""
        return Uniform()

    def replay(self, name: str, seed: int) -> ReplayBuffer:
        """Return a new buffer of the newest rows; of several shards, one shard's part of them."""
        capacity = -(-self.replay_agent_steps // self.replay_shards)
        return ReplayBuffer(capacity, self.n_step, self.discount, seed, self.sampling(), name)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """Return every field that is a schedule, by its name, and `epsilon` also if it is constant."""
        epsilon = getattr(self, "epsilon", None)
        # An epsilon-greedy actor is made from the network and learns its epsilon in no other way.
        constant = {} if epsilon is None else {"epsilon": at_start(epsilon)}
        return {**constant, **super().schedules(agent_steps)}


class OffPolicyActorCritic(OffPolicyAlgorithm):
    """An OffPolicyAlgorithm whose actor takes uniform random actions until learning starts."""

    only_for_actors: ClassVar[frozenset[str]] = frozenset({"acts_uniformly", "exploration_noise"})

    def problems(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        """Return why it cannot be used here; a Box of actions needs bounds."""
        found = super().problems(spaces, model)
        if isinstance(spaces.action, gym.Box) and (problem := box_problem(spaces.action)):
            found.append(cannot_act(self.name, spaces, reason=problem))
        return found

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> UniformFirst:
        """Return the network's actor, with uniform actions until learning starts."""
        return UniformFirst(self.network(spaces, model, seed).actor, spaces.action)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """Return every field that is a schedule, by its name, and whether to act uniformly."""
        acts_uniformly = float(agent_steps < self.learning_starts_agent_steps)
        return {"acts_uniformly": acts_uniformly, **super().schedules(agent_steps)}
