"""Deep Q-Network, DQN (Mnih et al., 2015, doi:10.1038/nature14236).

Stores every row in a replay buffer, and trains on samples in an exact ratio to the rows stored. Optional: double (van
Hasselt et al., 2016, arXiv:1509.06461), dueling (Wang et al., 2016, arXiv:1511.06581), n-step (Sutton, 1988),
prioritized (Schaul et al., 2016, arXiv:1511.05952), and distributional (C51, arXiv:1707.06887).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.algorithm import Capabilities, LearningAlgorithm
from marlflow.algorithms.c51_loss import C51Loss
from marlflow.algorithms.dqn_loss import DQNLoss
from marlflow.base.batch import Transitions
from marlflow.base.items import Fragment
from marlflow.base.schedules import Linear, Schedule, Setting, at_start
from marlflow.base.spaces import Spaces
from marlflow.flow import AgentSteps, Flow, InTurn, Plan, source
from marlflow.learn.loss import LossFunction
from marlflow.learn.optimizer import Adam, Optimizer
from marlflow.learn.protocol import Learner
from marlflow.policy.distributional import DistributionalQNetwork
from marlflow.policy.q import QNetwork
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.protocol import Replay
from marlflow.replay.sampling import Prioritized, Uniform
from marlflow.stages import Concat, Draw, Insert, Learn, NStep, Publish, Reprioritize, SyncTarget


@dataclass(frozen=True)
class DQN(LearningAlgorithm):
    """DQN's settings. Sizes are in agent steps of the policy; an update is one optimizer step.

    More than one of `atoms` makes action values distributions over that many values from `value_min` to `value_max`.
    """

    name: ClassVar[str] = "dqn"
    capabilities: ClassVar[Capabilities] = Capabilities(("Discrete",), "off-policy", Transitions, replay=True)
    has_target: ClassVar[bool] = True

    batch_agent_steps: int = 64
    train_every_agent_steps: int = 8
    learning_starts_agent_steps: int = 1_000
    store_agent_steps: int = 1
    replay_agent_steps: int = 100_000
    learning_rate: Setting = 5e-4
    discount: float = 0.99
    n_step: int = 3
    double: bool = True
    dueling: bool = False
    atoms: int = 1
    value_min: float = -10.0
    value_max: float = 10.0
    prioritized: bool = False
    priority_alpha: float = 0.6
    priority_beta: Setting = 0.4
    target_every_updates: int = 200
    tau: Setting = 1.0
    publish_every_updates: int = 10
    epsilon: Setting = Linear(1.0, 0.05, 10_000)
    huber_delta: Setting = 1.0
    max_grad_norm: Setting = 10.0
    optimiser: Optimizer = Adam()

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        (replay,) = replays
        store = (
            experience.gather(Concat(agent_steps=self.store_agent_steps))
            .then(NStep(self.n_step, self.discount), at=replay)
            .then(Insert(), at=replay)
        )
        # Adjacent learner stages are fused into one call, so that target updates and published versions come after the
        # same optimizer steps, whichever process the replay is in.
        train = (
            source(Draw(self.batch_agent_steps), at=replay)
            .then(Learn(), at=learner)
            .then(SyncTarget(every=self.target_every_updates, tau=at_start(self.tau)), at=learner)
            .then(Publish(every=self.publish_every_updates), at=learner)
            .then(Reprioritize(), at=replay)
        )
        ratio = InTurn(store=AgentSteps(self.train_every_agent_steps, self.learning_starts_agent_steps), output=1)
        return Plan("dqn", output=train, also={"store": store}, pace=ratio)

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[str]:
        problems = super().validate(spaces, model)
        if self.learning_starts_agent_steps > self.replay_agent_steps:
            problems.append(
                f"{self.name} would start learning after {self.learning_starts_agent_steps} agent steps, but its "
                f"replay holds {self.replay_agent_steps}; raise replay_agent_steps"
            )
        if self.atoms > 1 and isinstance(self.huber_delta, Schedule):
            problems.append(f"{self.name} with atoms has no Huber loss, so huber_delta cannot change; give it a number")
        if self.atoms > 1 and not self.value_min < self.value_max:
            problems.append(f"{self.name} needs value_min below value_max, not {self.value_min} and {self.value_max}")
        return problems

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> QNetwork | DistributionalQNetwork:
        if self.atoms == 1:
            return QNetwork(spaces, model, dueling=self.dueling, seed=seed)
        return DistributionalQNetwork(spaces, model, self.dueling, self.atoms, self.value_min, self.value_max, seed)

    def losses(self, spaces: Spaces) -> LossFunction:
        return DQNLoss(self.double, at_start(self.huber_delta)) if self.atoms == 1 else C51Loss(self.double)

    def replay(self, name: str, seed: int) -> ReplayBuffer:
        uniform = not self.prioritized
        sampling = Uniform() if uniform else Prioritized(self.priority_alpha, at_start(self.priority_beta))
        # Rounded up, so that shards together hold at least `replay_agent_steps`.
        capacity = -(-self.replay_agent_steps // self.replay_shards)
        return ReplayBuffer(capacity, self.n_step, self.discount, seed, sampling, name)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        # Always sent, because the actor has no epsilon of its own.
        return {"epsilon": at_start(self.epsilon), **super().schedules(agent_steps)}
