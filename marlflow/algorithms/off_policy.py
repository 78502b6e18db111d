"""Bases of off-policy algorithms: replay buffer, target network, and random actions before learning starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import LearningAlgorithm, cannot_act
from marlflow.base.problems import Problem
from marlflow.base.schedules import initial_value
from marlflow.base.spaces import Spaces
from marlflow.policy.box import box_problem
from marlflow.policy.torso import TorsoConfig
from marlflow.policy.warmup import WarmupActor
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.sampling import Prioritized, Uniform


class OffPolicyAlgorithm(LearningAlgorithm):
    """Base of algorithms with a replay buffer and a target network.

    A frozen dataclass derives from it, defines these fields, and adds `network()`, `losses()` and `plan()`.
    """

    has_target: ClassVar[bool] = True

    learning_starts_agent_steps: int
    replay_agent_steps: int
    discount: float
    n_step: int = 1

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        # Learning has to start before the replay buffer is full.
        if self.learning_starts_agent_steps > self.replay_agent_steps:
            starts, holds = self.learning_starts_agent_steps, self.replay_agent_steps
            message = f"would start learning after {starts} agent steps, but its replay holds {holds}"
            problems.append(Problem(message, self.name, remedy="raise replay_agent_steps"))
        return problems

    def sampling(self) -> Uniform | Prioritized:
        """Return how rows are drawn from the replay buffer."""
        return Uniform()

    def replay(self, name: str, seed: int) -> ReplayBuffer:
        # Rounded up, so that shards together hold at least `replay_agent_steps`.
        capacity = -(-self.replay_agent_steps // self.replay_shards)
        return ReplayBuffer(capacity, self.n_step, self.discount, seed, self.sampling(), name)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        epsilon = getattr(self, "epsilon", None)
        # A constant epsilon is sent too, because the actor has no epsilon of its own.
        constant = {} if epsilon is None else {"epsilon": initial_value(epsilon)}
        return {**constant, **super().schedules(agent_steps)}


class OffPolicyActorCritic(OffPolicyAlgorithm):
    """An OffPolicyAlgorithm that acts uniformly at random until learning starts."""

    actor_only_settings: ClassVar[frozenset[str]] = frozenset({"acts_uniformly", "exploration_noise"})

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        # Random actions are drawn between the bounds of a Box.
        if isinstance(spaces.action, gym.Box) and (problem := box_problem(spaces.action)):
            problems.append(cannot_act(self.name, spaces, reason=problem))
        return problems

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> WarmupActor:
        return WarmupActor(self.network(spaces, model, seed).actor, spaces.action)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        # Sent as a schedule, so that workers switch when the first round after the warm-up starts.
        acts_uniformly = float(agent_steps < self.learning_starts_agent_steps)
        return {"acts_uniformly": acts_uniformly, **super().schedules(agent_steps)}
