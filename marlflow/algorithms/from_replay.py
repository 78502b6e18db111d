"""What actor-critic algorithms share that learn from a replay: uniform actions at first, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import LearningAlgorithm, cannot_act
from marlflow.base.problems import Problem
from marlflow.base.spaces import Spaces
from marlflow.policy.box import box_problem
from marlflow.policy.torso import TorsoConfig
from marlflow.policy.uniform_first import UniformFirst
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.sampling import Uniform


class FromReplay(LearningAlgorithm):
    """A LearningAlgorithm with a target network and a replay of uniform draws; it acts uniformly until it learns.

    A frozen dataclass derives from it and has these fields; it gives `network()`, `losses()` and `plan()`.
    """

    has_target: ClassVar[bool] = True

    only_for_actors: ClassVar[frozenset[str]] = frozenset({"acts_uniformly", "exploration_noise"})

    learning_starts_agent_steps: int
    replay_agent_steps: int
    discount: float

    def problems(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        """As of all; a Box needs bounds, and learning has to start before the replay is full."""
        found = super().problems(spaces, model)
        if isinstance(spaces.action, gym.Box) and (problem := box_problem(spaces.action)):
            found.append(cannot_act(self.name, spaces, reason=problem))
        if self.learning_starts_agent_steps > self.replay_agent_steps:
            starts, holds = self.learning_starts_agent_steps, self.replay_agent_steps
            says = f"would start learning after {starts} agent steps, but its replay holds {holds}"
            found.append(Problem(says, self.name, remedy="raise replay_agent_steps"))
        return found

    @property
    def window_steps(self) -> int:
        """How many decisions of real reward there are before the bootstrap."""
        return 1

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> UniformFirst:
        """The network's actor; uniform actions until learning starts."""
        return UniformFirst(self.network(spaces, model, seed).actor, spaces.action)

    def replay(self, name: str, seed: int) -> ReplayBuffer:
        """Remembers the newest rows."""
        return ReplayBuffer(self.replay_agent_steps, self.window_steps, self.discount, seed, Uniform(), name)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """Every field that is a schedule, and whether to act uniformly."""
        acts_uniformly = float(agent_steps < self.learning_starts_agent_steps)
        return {"acts_uniformly": acts_uniformly, **super().schedules(agent_steps)}
