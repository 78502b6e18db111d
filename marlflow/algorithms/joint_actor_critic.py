"""Base of MADDPG, MATD3 and MASAC: off-policy actor-critics of several policies, with central critics."""

from __future__ import annotations

import torch

from marlflow.algorithms.off_policy import JointOffPolicyActorCritic
from marlflow.base.problems import Problem
from marlflow.base.spaces import Spaces
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.torso import NestedTorsoConfig, TorsoConfig
from marlflow.policy.warmup import WarmupActor


class JointActorCritic(JointOffPolicyActorCritic):
    """A JointOffPolicyActorCritic with central critics: add `policy_actor` too.

    Windows are one step long: with more, agents that end apart would need windows of their own.
    """

    def policy_actor(self, spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> NetworkActor:
        """Make the actor of one policy, without warm-up."""
        raise NotImplementedError(f"{type(self).__name__} has no policy_actor(spaces, model, generator)")

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> WarmupActor:
        # Without the critics, whose inputs are known only with all members.
        return WarmupActor(self.policy_actor(spaces, model, torch.Generator().manual_seed(seed)), spaces.action)

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        if isinstance(model, NestedTorsoConfig):
            reason = "its critics see all agents' observations and actions as one vector"
            message = f"cannot learn with {type(model).__name__}"
            problems.append(Problem(message, self.name, reason, "use a model of vectors, such as mlp"))
        return problems
