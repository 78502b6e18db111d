"""A limit on costs by a Lagrange multiplier: PPO-Lagrangian, MAPPO-Lagrangian and SAC-Lagrangian.

Ray, Achiam and Amodei, "Benchmarking safe exploration in deep reinforcement learning", 2019, section 4; in SAC, Ha et
al., "Learning to walk in the real world with minimal human effort", 2020, arXiv:2002.08550, section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gymnasium import spaces as gym
from torch import Tensor

from marlflow.algorithms.algorithm import Member, TorchAlgorithm
from marlflow.algorithms.part import Part, Point
from marlflow.algorithms.ppo import PPO
from marlflow.algorithms.sac import SAC
from marlflow.algorithms.sac_loss import BoxActorLoss, DiscreteActorLoss
from marlflow.base.errors import Problem
from marlflow.base.info_columns import COST
from marlflow.base.ranges import Amount, Weight
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.learner.loss import LossTerms, Unscheduled
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.part_state import COST_CRITIC, MULTIPLIER, Multiplier
from marlflow.learner.protocol import Scheduled
from marlflow.losses.deterministic_policy_gradient import critics_loss
from marlflow.losses.policy_gradient import constrained_policy_loss, value_loss
from marlflow.losses.q_learning import taken_value
from marlflow.losses.sac import expected_soft_q_target, soft_q_target
from marlflow.policy.critics import ActionCritics, BoxCritics, CostCritic
from marlflow.policy.torso import TorsoConfig
from marlflow.stages import CostAdvantages, UpdateMultiplier


def sac_cost_critic(spaces: Spaces, model: TorsoConfig, seed: int) -> ActionCritics | BoxCritics:
    """Build a critic of the costs that follow an action; an ensemble of one."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(spaces.action, gym.Box):
        return BoxCritics(spaces, model, 1, generator)
    return ActionCritics(spaces, model, 1, generator)


def with_sac_costs(groups: Sequence[LossGroup]) -> list[LossGroup]:
    """Return SAC's loss groups with that of the cost critic, and with costs in the actor's loss."""
    actor_loss = next(group.loss for group in groups if group.name == "actor")
    cost_loss: BoxCostLoss | DiscreteCostLoss
    if isinstance(actor_loss, BoxActorLoss):
        cost_loss, actor_loss.constraint = BoxCostLoss(actor_loss.noise_per_row), CostsOfAction()
    elif isinstance(actor_loss, DiscreteActorLoss):
        cost_loss, actor_loss.constraint = DiscreteCostLoss(), CostsOfProbabilities()
    else:
        raise TypeError(f"the actor's loss, {type(actor_loss).__name__}, takes no costs: derive it from one of SAC's")
    critic = LossGroup(COST_CRITIC, lambda module: module.cost_critic.parameters(), cost_loss)
    # The actor's loss reads what the critics have learned from the same rows.
    return [one for group in groups for one in ((critic, group) if group.name == "actor" else (group,))]


class CostsOfAction:
    """The share of costs in the actor's loss, by the learner's multiplier."""

    def __init__(self) -> None:
        self._multiplier = 0.0

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the multiplier."""
        self._multiplier = values.get(MULTIPLIER, self._multiplier)

    def __call__(self, by_row: Tensor, module: Any, obs: Tensor, action: Tensor) -> Tensor:
        return constrained_policy_loss(by_row, self.costs(module, obs, action), self._multiplier)

    def costs(self, module: Any, obs: Tensor, action: Tensor) -> Tensor:
        """Return the costs to come, [N]."""
        q_cost: Tensor = module.cost_critic(obs, action)[0]
        return q_cost


class CostsOfProbabilities(CostsOfAction):
    """The same for Discrete actions, by their probabilities [N, A]."""

    def costs(self, module: Any, obs: Tensor, action: Tensor) -> Tensor:
        q_cost: Tensor = module.cost_critic(obs)[0].detach()
        return (action * q_cost).sum(-1)


class BoxCostLoss(Unscheduled):
    """Squared errors to the cost value of a sampled next action, the one that the critics of rewards see."""

    def __init__(self, noise_per_row: int) -> None:
        self.noise_per_row = noise_per_row

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        with torch.no_grad():
            next_obs, noise = minibatch["next_obs"], minibatch["noise"][:, self.noise_per_row // 2 :]
            action, logp = module.actor.sample(next_obs, noise)
            q_t = target_module.cost_critic(next_obs, action)
            # Entropy costs nothing, so the temperature is 0.
            target = soft_q_target(minibatch["cost"], minibatch["discount"], q_t, logp, torch.zeros(()))
        q_tm1 = module.cost_critic(minibatch["obs"], module.actor.box.within(minibatch["action"]))
        total = (critics_loss(q_tm1, target) * minibatch["weight"]).mean()
        return LossTerms(total, {"cost_value": total.detach()})


class DiscreteCostLoss(Unscheduled):
    """Squared errors to the cost value of the next observation, over its legal actions."""

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        with torch.no_grad():
            next_obs = minibatch["next_obs"]
            p, logp = module.probabilities(next_obs, minibatch.get("next_mask"))
            q_t, cost, discount = target_module.cost_critic(next_obs), minibatch["cost"], minibatch["discount"]
            target = expected_soft_q_target(cost, discount, q_t, p, logp, torch.zeros(()))
        q_tm1 = module.cost_critic(minibatch["obs"])
        taken = taken_value(q_tm1, minibatch["action"].expand(len(q_tm1), -1))
        total = (critics_loss(taken, target) * minibatch["weight"]).mean()
        return LossTerms(total, {"cost_value": total.detach()})


@dataclass(frozen=True)
class CostLimit(Part):
    """Keeps the mean cost of an agent per episode below `limit`: `info["cost"]`, summed over its env steps.

    The multiplier, the reward that a cost of 1 is worth, moves once per batch, or per draw from a replay, by
    `multiplier_learning_rate` per cost above the limit. A second critic estimates costs.
    """

    credited: ClassVar[tuple[str, ...]] = (COST,)

    limit: OrSchedule[Amount]  #: mean cost (info["cost"]) per agent and episode to stay below
    #: step size of the Lagrange multiplier, per unit of cost above the limit
    multiplier_learning_rate: OrSchedule[Weight] = 0.05
    initial_multiplier: Weight = 0.0  #: Lagrange multiplier at first: the reward that a cost of 1 is worth

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
            network.cost_critic = CostCritic(member.spaces, network.critic_input, member.model, own_seed)
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
        settings = initial_value(self.limit), initial_value(self.multiplier_learning_rate)
        update = UpdateMultiplier(*settings, self.present)
        if not isinstance(algorithm, PPO):
            return {"before_learning": [update]}
        estimate = CostAdvantages(initial_value(algorithm.discount), initial_value(algorithm.gae_lambda))
        return {"estimated": [update, estimate]}

    def present(self, learner: Scheduled) -> tuple[float, float]:
        """Return the limit and the learning rate of now, after any schedule."""
        return self.now("limit", learner), self.now("multiplier_learning_rate", learner)


class CostValueLoss(Unscheduled):
    """Half the squared error of a cost critic to its value targets."""

    def __call__(self, module: Any, target_module: object, minibatch: Mapping[str, Tensor]) -> LossTerms:
        critic, target = module.cost_critic, minibatch["cost_value_target"]
        value = critic(minibatch.get("central", minibatch["obs"]))
        total = critic.value_error(value_loss(value, target)).mean()
        return LossTerms(total, {"cost_value": total.detach()})
