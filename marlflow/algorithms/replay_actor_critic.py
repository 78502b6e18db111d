"""Base of DDPG, TD3 and SAC: actor-critics that learn from every row of a replay buffer, in an exact ratio to rows."""

from __future__ import annotations

from collections.abc import Sequence

from marlflow.algorithms.off_policy import OffPolicyActorCritic
from marlflow.base.ranges import SomeShare, Steps
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.batches.items import Fragment
from marlflow.flow import AgentSteps, Flow, InTurn, Plan, source
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, Draw, Insert, Learn, NStep, Publish, SyncTarget


class ReplayActorCritic(OffPolicyActorCritic):
    """An OffPolicyActorCritic with the plan that DDPG, TD3 and SAC have in common; they have these settings."""

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
            .then(NStep(self.n_step, self.discount), at=replay)
            .then(Insert(), at=replay)
        )
        drawn = self.with_stages("before_learning", source(Draw(self.batch_agent_steps), at=replay), learner)
        train = (
            self.with_stages("after_update", drawn.then(Learn(), at=learner), learner)
            .then(self.sync(), at=learner)
            .then(Publish(every=self.publish_every_updates), at=learner)
        )
        ratio = InTurn(store=AgentSteps(self.train_every_agent_steps, self.learning_starts_agent_steps), output=1)
        return Plan(self.name, output=train, also={"store": store}, pace=ratio)

    def sync(self) -> SyncTarget:
        """Return the stage that updates the target network."""
        return SyncTarget(every=self.target_every_updates, tau=initial_value(self.tau))
