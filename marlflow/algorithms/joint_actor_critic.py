"""Base of MADDPG, MATD3 and MASAC: off-policy actor-critics of several policies, with central critics."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from marlflow.algorithms.off_policy import JointOffPolicyActorCritic
from marlflow.base.errors import Problem
from marlflow.base.ranges import SomeShare, Steps
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Fragment
from marlflow.batches.joint_segments import JointTransitions
from marlflow.flow import AgentSteps, Flow, InTurn, Plan, source
from marlflow.learner.protocol import Learner
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.torso import NestedTorsoConfig, TorsoConfig
from marlflow.policy.warmup import WarmupActor
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, Draw, Insert, JoinSegments, Learn, NStep, Publish, SyncTarget


class JointActorCritic(JointOffPolicyActorCritic):
    """A JointOffPolicyActorCritic with central critics, and these settings: add `policy_actor`, but no `plan`.

    Windows are one step long: with more, agents that end apart would need windows of their own.
    """

    batch_agent_steps: Steps
    train_every_agent_steps: Steps
    store_agent_steps: Steps
    tau: OrSchedule[SomeShare]
    target_every_updates: Steps
    publish_every_updates: Steps

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        (replay,) = replays
        store = (
            experience.gather(Concat(agent_steps=self.store_agent_steps))
            .then(JoinSegments(learner.seats), at=replay)
            .then(NStep(self.n_step, self.discount), at=replay)
            .then(Insert(), at=replay)
        )
        train = (
            source(Draw(self.batch_agent_steps, gives=JointTransitions), at=replay)
            .then(Learn(), at=learner)
            .then(self.sync(), at=learner)
            .then(Publish(every=self.publish_every_updates), at=learner)
        )
        ratio = InTurn(store=AgentSteps(self.train_every_agent_steps, self.learning_starts_agent_steps), output=1)
        return Plan(self.name, output=train, also={"store": store}, pace=ratio)

    def sync(self) -> SyncTarget:
        """Return the stage that updates the target networks."""
        return SyncTarget(every=self.target_every_updates, tau=initial_value(self.tau))

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
