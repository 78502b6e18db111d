"""Pop-Art: critics learn values normalized by the running mean and deviation of their targets.

Van Hasselt et al., "Learning values across many orders of magnitude", 2016, arXiv:1602.07714.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marlflow.algorithms.algorithm import Member, TorchAlgorithm
from marlflow.algorithms.part import Part
from marlflow.base.errors import Problem
from marlflow.policy.normalized import ReturnScale, ValueCritic


@dataclass(frozen=True)
class PopArt(Part):
    """Normalizes value targets by their running statistics, also of a critic of costs.

    The module `policy.normalized` rescales the head.
    """

    def validate(self, algorithm: TorchAlgorithm, spaces: Any, model: Any) -> Iterator[Problem]:
        if not algorithm.capabilities.critic:
            reason, remedy = (
                "it has no critic of states",
                "leave the part out, or use ppo, a2c or another with a critic",
            )
            yield Problem("cannot have a PopArt", algorithm.name, reason, remedy)
        elif not algorithm.learner_sees_every_row:
            reason, remedy = "its learner does not see all rows", "leave the part out, or use ppo"
            yield Problem("cannot have a PopArt", algorithm.name, reason, remedy)

    def extend(self, network: Any, algorithm: TorchAlgorithm, members: Mapping[str, Member], seed: int) -> None:
        if not any(isinstance(module, ValueCritic) for module in network.modules()):
            raise TypeError(
                f"{type(network).__name__} has no ValueCritic, whose values PopArt normalizes; derive its critic from "
                "mf.ValueCritic, or set parts.values=null"
            )

    def change_critic(self, critic: ValueCritic) -> None:
        critic.returns = ReturnScale(critic.value_head, critic.value_target)
