"""Decentralized distributed PPO, DD-PPO (Wijmans et al., 2020, arXiv:1911.00357).

Each rollout worker has a replica that trains on its own rows. Gradients are all-reduced at each step, so replicas stay
identical; neither rows nor weights are sent between processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from marlflow.algorithms.algorithm import Capabilities
from marlflow.algorithms.ppo import PPO
from marlflow.base.ranges import Steps
from marlflow.batches.batch import EstimatedBatch
from marlflow.flow import Flow
from marlflow.learner.protocol import Learner
from marlflow.stages import NormalizeShards, Shards


@dataclass(frozen=True)
class DDPPO(PPO):
    """DD-PPO's settings, the same as PPO's. Batches and minibatches count the rows of all workers."""

    name: ClassVar[str] = "ddppo"
    capabilities: ClassVar[Capabilities] = replace(PPO.capabilities, learns_on="workers")

    batch_agent_steps: Steps = 4_000  #: minimum agent steps in a batch, over all workers
    minibatch_agent_steps: Steps = 128  #: agent steps in one optimizer step, over all workers

    @property
    def learner_sees_every_row(self) -> bool:
        # Each replica sees only its own worker's rows.
        return False

    def prepared(self, estimated: Flow[EstimatedBatch], learner: Learner) -> Flow[Any]:
        return estimated.then(NormalizeShards(), at=learner) if self.normalize_advantages else estimated

    def batches(self) -> Shards:
        return Shards(agent_steps=self.batch_agent_steps)
