"""Recurrent replay distributed DQN, R2D2 (Kapturowski et al., 2019, https://openreview.net/forum?id=r1lyTjAqYX).

The replay buffer stores sequences with the memory before them. The learner refreshes that memory on burn-in rows, then
trains on the others with n-step double Q-learning on a squashed scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from marlflow.algorithms.algorithm import Capabilities, LearningAlgorithm, Member, TorchAlgorithm, infos_of
from marlflow.algorithms.dqn_loss import R2D2Loss
from marlflow.algorithms.off_policy import ReplayPlan
from marlflow.base.errors import Problem
from marlflow.base.ranges import Discount, LearningRate, Share, SmallCount, SomeShare, Steps, StepsOrZero, Threshold
from marlflow.base.schedules import Linear, OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Update
from marlflow.batches.sequences import SequenceTransitions
from marlflow.flow import Flow
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.policy.recurrent import RecurrentQNetwork
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.replay.sampling import Prioritized
from marlflow.replay.sequences import SequenceReplay
from marlflow.stages import Learn, SplitSegments


@dataclass(frozen=True)
class ReplaySequences(TorchAlgorithm):
    """The settings of a replay of sequences."""

    sequence_agent_steps: Steps = 20  #: maximum agent steps of a sequence to train on
    burn_in_agent_steps: StepsOrZero = 10  #: maximum agent steps before these that only restore the recurrent state


@dataclass(frozen=True)
class R2D2(ReplayPlan, ReplaySequences, LearningAlgorithm):
    """R2D2's settings; an update is one optimizer step."""

    name: ClassVar[str] = "r2d2"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete",), "off-policy", SequenceTransitions, replay=True, memory="needed", as_learned="greedy"
    )
    has_target: ClassVar[bool] = True
    reprioritizes: ClassVar[bool] = True

    batch_agent_steps: Steps = 640  #: agent steps drawn from the replay for an update, in whole sequences
    train_every_agent_steps: Steps = 64
    learning_starts_agent_steps: StepsOrZero = 2_000  #: agent steps stored before the first update
    learning_rate: OrSchedule[LearningRate] = 1e-3
    discount: Discount = 0.99
    n_step: SmallCount = 5  #: decisions whose rewards are summed before the bootstrap, within a sequence
    dueling: bool = True  #: separate streams for value and advantages
    squash_epsilon: SomeShare = 1e-3  #: weight of the linear term in the value rescaling
    priority_alpha: Share = 0.9  #: exponent of the priorities; 0 is uniform
    priority_beta: OrSchedule[Share] = 0.6  #: exponent of the importance weights; 1 corrects fully
    priority_max_share: Share = 0.9  #: weight of the largest error in a sequence's priority; the mean has the rest
    target_every_updates: Steps = 200
    tau: OrSchedule[SomeShare] = 1.0
    publish_every_updates: Steps = 10
    epsilon: OrSchedule[Share] = Linear(1.0, 0.05, 20_000)  #: probability of a random action: a number or a schedule
    max_grad_norm: OrSchedule[Threshold] = 10.0
    optimizer: Optimizer = Adam()

    def windows(self, rows: Flow[Any], learner: Learner, replay: Replay) -> Flow[Any]:
        # Before NStep: windows must end with their sequence.
        split = SplitSegments(self.sequence_agent_steps, self.burn_in_agent_steps)
        return super().windows(rows.then(split, at=replay), learner, replay)

    def learned(self, drawn: Flow[Any], learner: Learner) -> Flow[Update]:
        return drawn.then(Learn(), at=learner)

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        # Sizes that are invalid by themselves would make these comparisons confusing.
        if problems := super().validate(spaces, model):
            return problems
        rules = {
            f"learning_starts_agent_steps={self.learning_starts_agent_steps} of at most replay_agent_steps="
            f"{self.replay_agent_steps}, what its replay holds": (
                self.learning_starts_agent_steps <= self.replay_agent_steps
            ),
            f"batch_agent_steps={self.batch_agent_steps} of at least one sequence, sequence_agent_steps="
            f"{self.sequence_agent_steps}": self.batch_agent_steps >= self.sequence_agent_steps,
            f"n_step={self.n_step} of at most sequence_agent_steps={self.sequence_agent_steps}": (
                self.n_step <= self.sequence_agent_steps
            ),
        }
        return [Problem(f"needs {rule}", self.name) for rule, holds in rules.items() if not holds]

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> RecurrentQNetwork:
        return RecurrentQNetwork(spaces, model, self.dueling, seed)

    def losses(self, spaces: Spaces) -> R2D2Loss:
        return R2D2Loss(self.burn_in_agent_steps, self.squash_epsilon, self.priority_max_share)

    def replay(self, name: str, members: Mapping[str, Member], seed: int) -> SequenceReplay:
        return SequenceReplay(
            self.replay_agent_steps,
            self.sequence_agent_steps,
            self.burn_in_agent_steps,
            self.n_step,
            self.discount,
            seed,
            Prioritized(self.priority_alpha, initial_value(self.priority_beta)),
            name,
            infos=infos_of(members),
        )

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        # Always sent, because the actor has no epsilon of its own.
        return {"epsilon": initial_value(self.epsilon), **super().schedules(agent_steps)}
