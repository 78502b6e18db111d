"""Deep Q-Network, DQN (Mnih et al., 2015, doi:10.1038/nature14236).

Stores every row in a replay buffer, and trains on samples in an exact ratio to the rows stored. Optional: double (van
Hasselt et al., 2016, arXiv:1509.06461), dueling (Wang et al., 2016, arXiv:1511.06581), n-step (Sutton, 1988),
prioritized (Schaul et al., 2016, arXiv:1511.05952), and distributional (C51, arXiv:1707.06887).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.algorithm import Capabilities
from marlflow.algorithms.dqn_loss import C51Loss, DQNLoss
from marlflow.algorithms.off_policy import OffPolicyAlgorithm, ReplayPlan
from marlflow.base.errors import Problem
from marlflow.base.ranges import Discount, Finite, LearningRate, Share, SmallCount, SomeShare, Steps, Threshold
from marlflow.base.schedules import Linear, OrSchedule, Schedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Transitions
from marlflow.learner.loss import LossFunction
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.policy.q import DistributionalQNetwork, QNetwork
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.sampling import Prioritized, Uniform


@dataclass(frozen=True)
class DQN(ReplayPlan, OffPolicyAlgorithm):
    """DQN's settings; an update is one optimizer step.

    With more than one of `atoms`, values are distributions over that many values from `value_min` to `value_max`.
    """

    name: ClassVar[str] = "dqn"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete",), "off-policy", Transitions, replay=True, as_learned="greedy"
    )
    reprioritizes: ClassVar[bool] = True

    batch_agent_steps: Steps = 64
    train_every_agent_steps: Steps = 8
    learning_rate: OrSchedule[LearningRate] = 5e-4
    discount: Discount = 0.99
    n_step: SmallCount = 3
    double: bool = True  #: double Q-learning
    dueling: bool = False  #: separate streams for value and advantages
    atoms: SmallCount = 1  #: above 1: distributional values with this many atoms (C51), e.g. 51
    value_min: Finite = -10.0  #: lowest atom; no return may be much lower
    value_max: Finite = 10.0  #: highest atom
    prioritized: bool = False  #: sample rows by their TD errors; False: uniformly
    priority_alpha: Share = 0.6  #: exponent of the priorities; 0 is uniform
    priority_beta: OrSchedule[Share] = 0.4  #: exponent of the importance weights; 1 corrects fully
    target_every_updates: Steps = 200
    tau: OrSchedule[SomeShare] = 1.0
    publish_every_updates: Steps = 10
    epsilon: OrSchedule[Share] = Linear(1.0, 0.05, 10_000)  #: probability of a random action: a number or a schedule
    #: error at which the loss changes from quadratic to linear; infinite (.inf): never
    huber_delta: OrSchedule[Threshold] = 1.0
    max_grad_norm: OrSchedule[Threshold] = 10.0
    optimizer: Optimizer = Adam()

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        if self.atoms > 1 and isinstance(self.huber_delta, Schedule):
            message = "with atoms has no Huber loss, so huber_delta cannot change"
            problems.append(Problem(message, self.name, remedy="give it a number"))
        if self.atoms > 1 and not self.value_min < self.value_max:
            message = f"needs value_min below value_max, not {self.value_min} and {self.value_max}"
            problems.append(Problem(message, self.name))
        return problems

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> QNetwork | DistributionalQNetwork:
        if self.atoms == 1:
            return QNetwork(spaces, model, dueling=self.dueling, seed=seed)
        return DistributionalQNetwork(spaces, model, self.dueling, self.atoms, self.value_min, self.value_max, seed)

    def losses(self, spaces: Spaces) -> LossFunction:
        return DQNLoss(self.double, initial_value(self.huber_delta)) if self.atoms == 1 else C51Loss(self.double)

    def sampling(self) -> Uniform | Prioritized:
        return Prioritized(self.priority_alpha, initial_value(self.priority_beta)) if self.prioritized else Uniform()
