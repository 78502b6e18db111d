"""Base of MADDPG, MATD3 and MASAC: off-policy actor-critics of several policies, with central critics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import JointAlgorithm, cannot_act
from marlflow.base.problems import Problem
from marlflow.base.spaces import Spaces
from marlflow.policy.box import box_problem
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.torso import NestedTorsoConfig, TorsoConfig
from marlflow.policy.warmup import WarmupActor


class JointActorCritic(JointAlgorithm):
    """A joint off-policy algorithm whose policies act uniformly at random until learning starts."""

    has_target: ClassVar[bool] = True
    actor_only_settings: ClassVar[frozenset[str]] = frozenset({"acts_uniformly", "exploration_noise"})

    learning_starts_agent_steps: int

    def policy_actor(self, spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> NetworkActor:
        """Make the actor of one policy, without warm-up."""
        raise NotImplementedError(f"{type(self).__name__} has no policy_actor(spaces, model, generator)")

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        # Random actions are drawn between the bounds of a Box.
        if isinstance(spaces.action, gym.Box) and (problem := box_problem(spaces.action)):
            problems.append(cannot_act(self.name, spaces, reason=problem))
        kind, reason = type(model).__name__, "its critics see all agents' observations and actions as one vector"
        if isinstance(model, NestedTorsoConfig):
            problems.append(
                Problem(f"cannot learn with {kind}", self.name, reason, "use a model of vectors, such as mlp")
            )
        if getattr(model, "normalize_observations", False):
            problems.append(Problem("cannot do normalize_observations", self.name, reason, "leave it off"))
        return problems

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> WarmupActor:
        return WarmupActor(self.policy_actor(spaces, model, torch.Generator().manual_seed(seed)), spaces.action)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        # Sent as a schedule, so that workers switch when the first round after the warm-up starts.
        acts_uniformly = float(agent_steps < self.learning_starts_agent_steps)
        return {"acts_uniformly": acts_uniformly, **super().schedules(agent_steps)}
