"""A limit on costs by a Lagrange multiplier: PPO-Lagrangian, MAPPO-Lagrangian and SAC-Lagrangian.

Ray, Achiam and Amodei, "Benchmarking safe exploration in deep reinforcement learning", 2019, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from marlflow.algorithms.algorithm import Member, TorchAlgorithm
from marlflow.algorithms.part import Part, Point
from marlflow.algorithms.ppo import PPO
from marlflow.algorithms.sac import SAC
from marlflow.algorithms.sac_costs import sac_cost_critic, with_sac_costs
from marlflow.base.errors import Problem
from marlflow.base.info_columns import COST
from marlflow.base.ranges import Amount, Weight
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.learner.loss import LossTerms
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.part_state import COST_CRITIC, Multiplier
from marlflow.losses.policy_gradient import value_loss
from marlflow.policy.critics import CostCritic
from marlflow.stages import CostAdvantages, UpdateMultiplier


@dataclass(frozen=True)
class CostLimit(Part):
    """Keeps the mean cost of an agent per episode below `limit`: `info["cost"]`, summed over its env steps.

    The multiplier, the reward that a cost of 1 is worth, moves once per update, by `multiplier_learning_rate` per cost
    above the limit. A second critic estimates costs.
    """

    credited: ClassVar[tuple[str, ...]] = (COST,)

    limit: OrSchedule[Amount]
    multiplier_learning_rate: OrSchedule[Weight] = 0.05
    initial_multiplier: Weight = 0.0

    def validate(self, algorithm: TorchAlgorithm, spaces: Any, model: Any) -> Iterator[Problem]:
        remedy = "use ppo, mappo or sac, or leave the part out"
        if not isinstance(algorithm, PPO | SAC):
            yield Problem("cannot have a CostLimit", algorithm.name, "nothing of it weighs rewards and costs", remedy)
        elif algorithm.capabilities.learns_on == "workers":
            reason = "no learner of it sees the costs of all workers"
            yield Problem("cannot have a CostLimit", algorithm.name, reason, remedy)

    def extend(self, network: Any, algorithm: TorchAlgorithm, members: Mapping[str, Member], seed: int) -> None:
        (member,) = members.values()
        # Apart from the generator that the other networks are drawn from.
        own_seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))
        if isinstance(algorithm, PPO):
            sees, normalizes = network.critic_input, algorithm.normalize_values
            network.cost_critic = CostCritic(member.spaces, sees, member.model, normalizes, own_seed)
        else:
            network.cost_critic = sac_cost_critic(member.spaces, member.model, own_seed)

    def losses(
        self, groups: Sequence[LossGroup], algorithm: TorchAlgorithm, members: Mapping[str, Member]
    ) -> Sequence[LossGroup]:
        if not isinstance(algorithm, PPO):
            return with_sac_costs(groups)
        # A group of its own, so that the gradient of PPO's loss is clipped as without costs.
        critic = LossGroup(COST_CRITIC, lambda module: module.cost_critic.parameters(), CostValueLoss())
        return critic.beside(groups, rest="actor_critic")

    def state(self) -> Multiplier:
        return Multiplier(self.initial_multiplier)

    def stages(self, algorithm: TorchAlgorithm) -> Mapping[Point, Sequence[Callable[..., Any]]]:
        update = UpdateMultiplier(initial_value(self.limit), initial_value(self.multiplier_learning_rate))
        if not isinstance(algorithm, PPO):
            return {"before_learning": [update]}
        estimate = CostAdvantages(initial_value(algorithm.discount), initial_value(algorithm.gae_lambda))
        return {"estimated": [update, estimate]}


class CostValueLoss:
    """Half the squared error of a cost critic to its value targets."""

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # Nothing of this loss is scheduled.
        return

    def __call__(self, module: Any, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        critic, target = module.cost_critic, minibatch["cost_value_target"]
        value = critic(minibatch.get("central", minibatch["obs"]))
        total = critic.value_error(value_loss(value, target)).mean()
        return LossTerms(total, {"cost_value": total.detach()})
