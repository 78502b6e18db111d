"""Behavioral cloning of other policies while they play: the average policy of fictitious self-play (NFSP).

Heinrich and Silver, "Deep reinforcement learning from self-play in imperfect-information games", 2016,
arXiv:1603.01121. A reservoir has a uniform sample of all actions of the policies in `policies.<id>.learns_from`; their
likelihood is increased, so that the policy becomes the average of all that they have done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from marlflow.algorithms.algorithm import Capabilities, LearningAlgorithm, Member
from marlflow.algorithms.bc import BCLoss, Cloner
from marlflow.algorithms.off_policy import ReplaySettings
from marlflow.base.ranges import LearningRate, Steps, StepsOrZero, Threshold
from marlflow.base.schedules import OrSchedule
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Decisions
from marlflow.batches.items import Fragment
from marlflow.flow import AgentSteps, Flow, InTurn, Plan, source
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.policy.actor_critic import stochastic_actor
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.replay.reservoir import Reservoir
from marlflow.stages import Concat, Draw, Insert, Learn, Publish


@dataclass(frozen=True)
class Clone(ReplaySettings, LearningAlgorithm):
    """The settings of cloning from a reservoir; an update is one optimizer step.

    The policy is a mixed strategy: evaluation episodes sample its actions.
    """

    name: ClassVar[str] = "clone"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete", "Box"), "off-policy", Decisions, replay=True, imitates=True
    )

    batch_agent_steps: Steps = 128  #: agent steps drawn from the reservoir for an update
    train_every_agent_steps: Steps = 8  #: agent steps inserted per update, exactly
    learning_starts_agent_steps: StepsOrZero = 1_000  #: agent steps inserted before the first update
    store_agent_steps: Steps = 1  #: minimum agent steps inserted at a time, in whole rounds; more means fewer calls
    replay_agent_steps: Steps = 200_000  #: agent steps in the reservoir, a uniform sample of all that were inserted
    learning_rate: OrSchedule[LearningRate] = 1e-3
    publish_every_updates: Steps = 10  #: updates from one publication of the weights to the next
    max_grad_norm: OrSchedule[Threshold] = 10.0
    optimizer: Optimizer = Adam()

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        (replay,) = replays
        store = experience.gather(Concat(agent_steps=self.store_agent_steps)).then(Insert(), at=replay)
        train = (
            source(Draw(self.batch_agent_steps, gives=Decisions), at=replay)
            .then(Learn(), at=learner)
            .then(Publish(every=self.publish_every_updates), at=learner)
        )
        ratio = InTurn(store=AgentSteps(self.train_every_agent_steps, self.learning_starts_agent_steps), output=1)
        return Plan("clone", output=train, also={"store": store}, pace=ratio)

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Cloner:
        return Cloner(stochastic_actor(spaces, model, torch.Generator().manual_seed(seed)))

    def losses(self, spaces: Spaces) -> BCLoss:
        return BCLoss()

    def replay(self, name: str, members: Mapping[str, Member], seed: int) -> Reservoir:
        return Reservoir(self.replay_agent_steps, seed, name)
