"""Base of off-policy actor-critic algorithms: warm-up with uniform actions, and common validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import LearningAlgorithm, describe_space
from marlflow.base.spaces import Spaces
from marlflow.policy.box import box_problem
from marlflow.policy.torso import TorsoConfig
from marlflow.policy.uniform_first import UniformFirst
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.sampling import Uniform


class OffPolicyActorCritic(LearningAlgorithm):
    """Base of off-policy actor-critics: target network, uniform replay, random actions until learning starts.

    A frozen dataclass derives from it, defines these fields and adds `network()`, `losses()` and `plan()`.
    """

    has_target: ClassVar[bool] = True

    actor_only_settings: ClassVar[frozenset[str]] = frozenset({"acts_uniformly", "exploration_noise"})

    learning_starts_agent_steps: int
    replay_agent_steps: int
    discount: float

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[str]:
        problems = super().validate(spaces, model)
        # Actions are squashed into the Box, so it must be bounded.
        if isinstance(spaces.action, gym.Box) and (problem := box_problem(spaces.action)):
            problems.append(f"{self.name} cannot act in {describe_space(spaces.action)}: {problem}")
        if self.learning_starts_agent_steps > self.replay_agent_steps:
            problems.append(
                f"{self.name} would start learning after {self.learning_starts_agent_steps} agent steps, but its "
                f"replay holds {self.replay_agent_steps}; raise replay_agent_steps"
            )
        return problems

    @property
    def window_steps(self) -> int:
        """Steps of real rewards before the bootstrap (n-step)."""
        return 1

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> UniformFirst:
        return UniformFirst(self.network(spaces, model, seed).actor, spaces.action)

    def replay(self, name: str, seed: int) -> ReplayBuffer:
        return ReplayBuffer(self.replay_agent_steps, self.window_steps, self.discount, seed, Uniform(), name)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        # Sent as a schedule, so that workers switch when the first round after the warm-up starts.
        acts_uniformly = float(agent_steps < self.learning_starts_agent_steps)
        return {"acts_uniformly": acts_uniformly, **super().schedules(agent_steps)}
