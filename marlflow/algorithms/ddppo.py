"""Decentralized distributed PPO, DD-PPO (Wijmans et al., 2020, arXiv:1911.00357).

Each rollout worker has a replica that trains on its own rows. Gradients are all-reduced at each step, so replicas stay
identical; neither rows nor weights are sent between processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from marlflow.algorithms.algorithm import Capabilities
from marlflow.algorithms.ppo import PPO
from marlflow.base.schedules import initial_value
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.stages import Advantages, DropStale, Learn, Normalize, Publish, Shards


@dataclass(frozen=True)
class DDPPO(PPO):
    """DD-PPO's settings, the same as PPO's. Batches and minibatches count the rows of all workers."""

    name: ClassVar[str] = "ddppo"
    capabilities: ClassVar[Capabilities] = replace(PPO.capabilities, learns_on="workers")

    @property
    def learner_sees_every_row(self) -> bool:
        # Each replica sees only its own worker's rows.
        return False

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay] = ()) -> Plan:
        estimate = Advantages(initial_value(self.discount), initial_value(self.gae_lambda), self.bootstrap_at_death)
        batches = experience.gather(Shards(agent_steps=self.batch_agent_steps))
        fresh = self.with_stages("fresh", batches.then(DropStale(self.max_staleness), at=learner), learner)
        estimated = self.with_stages("estimated", fresh.then(estimate, at=learner), learner)
        if self.normalize_advantages:
            estimated = estimated.then(Normalize(), at=learner)
        learn = Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps)
        learned = self.with_stages("before_learning", estimated, learner).then(learn, at=learner)
        reports = self.with_stages("after_update", learned, learner).then(Publish(), at=learner)
        return Plan("ddppo", output=reports, waits_for_rounds=True)
