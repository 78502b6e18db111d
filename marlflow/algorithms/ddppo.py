"""Decentralised distributed PPO (Wijmans et al., 2020, arXiv:1911.00357).

PPO without a learner of its own: each rollout worker has a replica, which estimates and normalises the advantages of
the rows that were made there, and learns from them; gradients are added up over all workers at each step, so that all
replicas stay the same. No row leaves its worker, and no weights have to be sent to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from marlflow.algorithms.algorithm import Capabilities
from marlflow.algorithms.ppo import PPO
from marlflow.base.items import Fragment
from marlflow.base.schedules import at_start
from marlflow.flow import Flow, Plan
from marlflow.learn.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.stages import Advantages, DropStale, Learn, Normalize, Publish, Shards


@dataclass(frozen=True)
class DDPPO(PPO):
    """DD-PPO's settings, which are PPO's. A batch and a minibatch are the rows of all workers together."""

    name: ClassVar[str] = "ddppo"
    capabilities: ClassVar[Capabilities] = replace(PPO.capabilities, learns_on="workers")

    @property
    def sees_all_rows(self) -> bool:
        """Each replica sees those of its own worker."""
        return False

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay] = ()) -> Plan:
        """From experience to weights."""
        reports = (
            experience.gather(Shards(agent_steps=self.batch_agent_steps))
            .then(DropStale(self.max_staleness), at=learner)
            .then(Advantages(at_start(self.discount), at_start(self.gae_lambda)), at=learner)
            .then(Normalize(), at=learner)
            .then(Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
            .then(Publish(), at=learner)
        )
        return Plan("ddppo", output=reports, waits_for_rounds=True)
