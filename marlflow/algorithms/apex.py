"""Ape-X: distributed prioritized experience replay with DQN (Horgan et al., 2018, arXiv:1803.00933).

Environments explore with different epsilons, workers compute initial priorities, replay shards receive batches
round-robin, and one learner trains on draws of whichever shard is ready.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.dqn import DQN
from marlflow.base.ranges import Count, Noise, Processes, Share, Steps
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Fragment
from marlflow.flow import AgentSteps, AtMost, Flow, Freely, Plan, Rotation, merge, source
from marlflow.flow.relocate import Where
from marlflow.learner.protocol import Learner
from marlflow.policy.q import QActor
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.stages import (
    ByShard,
    Concat,
    Draw,
    InitialPriorities,
    Insert,
    Learn,
    NStep,
    Publish,
    Reprioritize,
    SyncTarget,
)


@dataclass(frozen=True)
class ApeX(DQN):
    """Ape-X's settings: DQN's with other defaults, and its own.

    `replay_shards` share `replay_agent_steps` and `learning_starts_agent_steps`.
    """

    name: ClassVar[str] = "apex"
    stages: ClassVar[Mapping[str, Where]] = {"NStep": "worker", "InitialPriorities": "worker"}

    train_every_agent_steps: Steps = 8  #: minimum agent steps stored per update
    replay_agent_steps: Steps = 100_000  #: agent steps that all shards of the replay hold
    dueling: bool = True
    prioritized: bool = True
    epsilon: OrSchedule[Share] = 0.4  #: probability of a random action in the first environment
    epsilon_ladder: Noise = 7.0  #: env i of N: epsilon ** (1 + i * epsilon_ladder / (N - 1)); 0: all equal
    replay_shards: Processes = 4  #: processes that the rows are divided among
    draws_ahead: Count = 8  #: sampled batches that may wait for the learner

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        # Each shard waits for its share of `learning_starts_agent_steps`.
        starts, shards = -(-self.learning_starts_agent_steps // len(replays)), range(len(replays))
        batches = (
            experience.gather(Concat(agent_steps=self.store_agent_steps))
            .then(NStep(self.n_step, self.discount), at=replays[0])
            .then(InitialPriorities(), at=learner)
            .split(Rotation(len(replays)), shards)
        )
        draws = {
            f"shard_{shard}": merge(
                # Stored rows earn draws: none before learning starts, and not endlessly on unchanged rows.
                AtMost(store=AgentSteps(self.train_every_agent_steps, starts), draw=1),
                name=f"Shard {shard}",
                store=batches[shard].then(Insert(), at=replay, name=f"Insert {shard}"),
                draw=source(Draw(self.batch_agent_steps), at=replay, name=f"Draw {shard}"),
            ).only("draw")
            for shard, replay in enumerate(replays)
        }
        learned = (
            merge(Freely(), name="Shards", **draws)
            # Bounds the draws that wait for the learner (back pressure).
            .queue(self.draws_ahead, name="Draws")
            .then(Learn(), at=learner)
            .then(SyncTarget(every=self.target_every_updates, tau=initial_value(self.tau)), at=learner)
            .then(Publish(every=self.publish_every_updates), at=learner)
            .split(ByShard(), shards)
        )
        priorities = {
            f"shard_{shard}": learned[shard].then(Reprioritize(), at=replay, name=f"Reprioritize {shard}")
            for shard, replay in enumerate(replays)
        }
        return Plan("apex", output=merge(Freely(), name="Returned", **priorities))

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> QActor:
        actor = self.network(spaces, model, seed).actor
        # Each environment has its own epsilon.
        actor.ladder = self.epsilon_ladder
        return actor
